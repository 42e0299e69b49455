"""Tables in the file format of values: run where pyarrow, pandas and polars are, see ``test_arrow``."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from kernelexec import Executor
from kernelexec.launcher.arrow_stream import StreamRefused, check_stream, read_table, write_table
from kernelexec.launcher.values import EncodedValues, ValueDecoder, ValueRefused
from tests.support.carried_values import LIMIT, carried, content, file_of, outcomes_of_changed_bytes
from tests.support.pace import BOUND
from tests.support.peak_memory import forget_peak, peak_bytes


class Own:
    pass


FRAME = pd.DataFrame(
    {"a": [1, 2], "b": ["x", None], "t": pd.to_datetime(["2020-01-01", None]), "c": pd.Categorical(["u", "v"])},
    index=pd.Index(["p", "q"], name="i"),
)
TABLES: dict[str, Any] = {
    "a table": FRAME,
    "an empty one": pd.DataFrame(),
    "columns of pairs": pd.DataFrame({("a", 1): [1], ("b", 2): [2]}),
    "two indexes": pd.DataFrame({"a": [1]}, index=pd.MultiIndex.from_tuples([(1, "x")])),
    "a series": pd.Series([1.5, 2], index=[5, 6], name="s"),
    "a series with a pair as name": pd.Series([1], name=("a", 1)),
    "a series without name": pd.Series(["x"]),
    "an index": pd.Index([1, 2], name="n"),
    "a range": pd.RangeIndex(5),
    "times of a zone": pd.Index(pd.to_datetime(["2020-01-01"]).tz_localize("Europe/Zurich")),
    "lists": pd.DataFrame({"a": [[1, 2], [], None], "b": [["x"], [], ["y", None]], "c": [[[1]], [[]], []]}),
    "records": pd.DataFrame({"a": [{"x": 1, "y": ["z"]}, {"x": 2, "y": []}]}),
    "days": pd.DataFrame({"a": [1, 2, 3]}, index=pd.date_range("2020", periods=3, freq="D")),
    "hours of a zone": pd.date_range("2020", periods=3, freq="h", tz="Europe/Zurich"),
    "of polars": pl.DataFrame({"a": [1, None], "b": ["x", "y"]}),
    "a series of polars": pl.Series("s", [1, 2]),
    "of pyarrow": pa.table({"a": [[1], None], "d": pa.array(["x", "x"]).dictionary_encode()}),
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_table_is_equal(table: Any) -> None:
    actual = carried(table)
    assert type(actual) is (pd.Index if isinstance(table, pd.RangeIndex) else type(table)) or isinstance(table, pd.Index)
    if isinstance(table, pd.Index):
        pd.testing.assert_index_equal(actual, table, exact="equiv")
    elif isinstance(table, pd.Series):
        pd.testing.assert_series_equal(actual, table)
    elif isinstance(table, pd.DataFrame):
        pd.testing.assert_frame_equal(actual, table)
        assert [list(map(type, actual[name])) for name in table] == [list(map(type, table[name])) for name in table]
    else:
        assert actual.equals(table)


@pytest.mark.parametrize(
    "value", [pd.Timestamp("2020-01-01 12:00:00.000000001"), pd.Timestamp("2020-07-01", tz="Europe/Zurich")]
)
def test_times_of_pandas_keep_their_zone(value: Any) -> None:
    assert carried(value) == value
    assert carried(value).tz == value.tz
    assert carried(pd.Timedelta(5, "ns")) == pd.Timedelta(5, "ns")


REFUSED: dict[str, tuple[Any, str]] = {
    "mixed types": (pd.DataFrame({"a": [1, "x"]}), "x has values that Arrow cannot carry"),
    "instances": (pd.DataFrame({"a": [Own()]}), "x has values that Arrow cannot carry"),
    "integers of more than 64 bits": (pd.DataFrame({"a": [2**70]}), "x has values that Arrow cannot carry"),
    "tuples": (pd.DataFrame({"a": [(1, 2), (3,)]}), "the column 'a' of x has cells of tuple that would come back as others"),
    "sets": (pd.DataFrame({"a": [{1}]}), "has cells of set"),
    "records with other keys": (pd.DataFrame({"a": [{"x": 1}, {"y": 2}]}), "has cells of dict"),
    "periods": (pd.Series(pd.period_range("2020", periods=2, freq="M")), r"is of period\[M\]"),
    "an index of periods": (pd.DataFrame({"a": [1]}, index=pd.period_range("2020", periods=1, freq="M")), "an index of period"),
    "intervals": (pd.DataFrame({"a": pd.cut([1, 2, 3], 2)}), "the column 'a' of x is of category"),
    "labels of two types": (pd.DataFrame({1: [1], "a": [2]}), "x has labels of columns of several types"),
    "labels true and false": (pd.DataFrame({True: [1], False: [2]}), "true and false"),
    "an index of pairs": (pd.MultiIndex.from_tuples([(1, 2)]), "pandas.MultiIndex"),
}


@pytest.mark.parametrize(("value", "text"), REFUSED.values(), ids=REFUSED)
def test_other_tables_are_refused(value: Any, text: str) -> None:
    with pytest.raises(ValueRefused, match=text):
        EncodedValues({"x": value}, LIMIT)


def test_nothing_of_pandas_is_itself() -> None:
    assert carried(pd.NaT) is pd.NaT
    assert carried(pd.NA) is pd.NA


def test_changed_bytes_give_a_value_or_a_refusal() -> None:
    """Also of tables, whose reader is C++: the process lives on."""
    original = content({"x": [FRAME, np.arange(50), {1: b"abc"}]})
    assert outcomes_of_changed_bytes(original) == {"a value", "refused"}


@pytest.mark.parametrize(
    "column",
    [
        pa.array([["a"], ["a"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
        pa.array(["a" * 20, "b"], pa.string_view()),
        pa.array([b"a"], pa.binary_view()),
        pa.array([[1], [2]], pa.list_view(pa.int8())),
        pa.RunEndEncodedArray.from_arrays([5], ["a"]),
        pa.array([{"a": ["x"]}], pa.struct([("a", pa.list_(pa.string_view()))])),
    ],
    ids=str,
)
def test_a_column_that_names_bytes_many_times_is_refused(column: Any) -> None:
    with pytest.raises(StreamRefused, match="it has a column of type"):
        read_table(memoryview(write_table(pa.table({"a": column}))))


def test_a_compressed_stream_is_refused() -> None:
    table, sink = pa.table({"a": pa.nulls(10**6, pa.int64()).fill_null(0)}), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    with pytest.raises(StreamRefused, match="compressed"):
        read_table(memoryview(sink.getvalue()))


def test_a_stream_of_nulls_without_bytes_is_refused() -> None:
    table = pa.table({"a": pa.nulls(10**6)})
    with pytest.raises(StreamRefused, match="more values than bits"):
        check_stream(memoryview(write_table(table)))


def test_a_stream_of_an_early_version_is_refused() -> None:
    """It marks compression in another place, and 20 kB may become any size."""
    table, sink = pa.table({"a": [1]}), pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    with pytest.raises(StreamRefused, match="early version"):
        read_table(memoryview(sink.getvalue()))


def test_columns_of_the_same_bytes_are_refused() -> None:
    """Together they would have more bytes than the stream."""
    column = pa.array([b"x" * 8000], pa.binary())
    stream = bytes(memoryview(write_table(pa.table({"a": column, "b": pa.array([b""], pa.binary())}))))
    offsets, content = struct.pack("<qqqq", 0, 8, 8, 8000), struct.pack("<qqqq", 8008, 8, 8016, 0)
    assert (offsets in stream, stream.count(content)) == (True, 1)
    with pytest.raises(StreamRefused, match="share bytes"):
        read_table(memoryview(stream.replace(content, offsets)))


def test_a_schema_that_takes_long_to_read_is_refused() -> None:
    with pytest.raises(StreamRefused, match="names of more than"):
        read_table(memoryview(write_table(pa.table({"x" * 300_000: [1]}))))
    with pytest.raises(StreamRefused, match="its schema has more"):
        read_table(memoryview(write_table(pa.table({"x": [1]}).replace_schema_metadata({"pandas": "x" * 5_000_000}))))


@pytest.mark.parametrize("length", range(0, 700, 7))
def test_a_stream_that_is_cut_off_is_refused_or_shorter(length: int) -> None:
    stream = memoryview(write_table(pa.table({"a": list(range(100))})))
    with suppress(StreamRefused):
        assert read_table(stream[:length]).num_rows in (0, 100)


MIB = 2**20
N = 500_000
#: Columns whose values are larger in the library that reads them than in the stream.
COLUMNS: dict[str, Callable[[], Any]] = {
    "texts": lambda: pa.array(["xy"] * N),
    "bytes": lambda: pa.array([b"xy"] * N),
    "numbers that are missing": lambda: pa.array([1, None] * N, pa.int8()),
    "bits that are missing": lambda: pa.array([True, None] * N),
    "dates": lambda: pa.array(list(range(N)), pa.date32()),
    "times": lambda: pa.array([number % 86_400 for number in range(N)], pa.time32("s")),
    "decimals": lambda: pa.array(list(range(N)), pa.decimal128(10)),
    "lists": lambda: pa.array([[]] * N, pa.list_(pa.int8())),
    "lists of texts": lambda: pa.array([["x"]] * N),
    "structures": lambda: pa.array([{"a": 1}] * N),
    "maps": lambda: pa.array([[("a", 1)]] * N, pa.map_(pa.string(), pa.int8())),
    "categories": lambda: pa.array(["x", "y"] * N).dictionary_encode(),
}


def decoder_of_column(tag: str, name: str, limit: int) -> ValueDecoder:
    stream = bytes(memoryview(write_table(pa.table({"a": COLUMNS[name]()}))))
    return ValueDecoder(file_of({"values": {"x": {"$": tag, "buffer": 0}}, "sizes": [len(stream)]}, stream), limit)


def growth(tag: str, name: str) -> int | None:
    """By how many bytes a process grows at most while it reads a column of which none may be kept; None if it refused it."""
    decoder = decoder_of_column(tag, name, 0)
    carried(pl.DataFrame({"a": [1]})), carried(FRAME)  # what is imported first is no part of it
    before = forget_peak()
    try:
        kept = decoder.decode()
    except ValueRefused:
        return None
    return peak_bytes() - before if kept else 0


@pytest.fixture(scope="module")
def measured() -> Iterator[Callable[[str, str], int | None]]:
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        yield lambda *arguments: pool.submit(growth, *arguments).result()


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("tag", ["pandas.DataFrame", "polars.DataFrame", "pyarrow.Table"])
def test_a_column_takes_no_more_than_the_limit_and_64_mib(measured: Any, tag: str, name: str) -> None:
    grown = measured(tag, name)
    assert grown is None or grown <= 64 * MIB
    assert decoder_of_column(tag, name, 1024 * MIB).decode()


def test_a_table_goes_to_a_kernel_and_back(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [1.5, 2], "b": ["x", None]}, index=pd.Index([3, 4], name="i"))
    with Executor("local", workspace=tmp_path) as executor, executor.session("a") as session:
        session.put("frame", frame)
        assert session.execute("frame.shape, frame.index.name, frame.b[3]").value == ((2, 2), "i", "x")
        pd.testing.assert_frame_equal(session["frame"], frame)
        session["table"] = pl.DataFrame({"a": [1, None]})
        assert session["table"].equals(pl.DataFrame({"a": [1, None]}))


def test_forked_kernels_have_pandas_although_it_imports_pyarrow(tmp_path: Path) -> None:
    code = "import sys\nwas = 'pandas' in sys.modules\nimport pandas as pd\npd.Series(['x']).dtype == 'str', was"
    deadline = time.monotonic() + BOUND
    with Executor("local", workspace=tmp_path, config={"preload": ["pandas"]}) as executor:
        for number in count():
            with executor.session(f"s{number}") as session:
                result = session.execute(code)
            assert (result.status, result.notes) == ("ok", ())
            if result.value == (True, True):
                break
            assert time.monotonic() < deadline, "pandas was not preloaded"
            time.sleep(0.5)
