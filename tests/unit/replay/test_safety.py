"""Which cells are safe to repeat, as far as their text shows."""

from __future__ import annotations

import pytest

from kernelexec.rules.recorded_history import RecordedCell
from kernelexec.rules.replay_safety import OutsideUse, SideEffectChecker, definitions, name_changes, reason_against, used_names

SAFE = [
    "x = 1",
    "import pandas as pd\ndf = pd.read_csv('a.csv')",
    "df.to_csv('out.csv', index=False)",
    "df.to_csv('out.csv', mode='w')",
    "df.to_sql('t', con, if_exists='replace')",
    "df = df.rename(columns={'a': 'b'})",
    "s = s.rename('total')",
    "text = text.replace('a', 'b')",
    "xs.remove(3)",
    "import requests\nr = requests.get('https://example.org')\ndata = r.json()\ndata.update({'a': 1})",
    "import requests\nrequests.request('GET', url)",
    "from urllib.request import urlopen\nurlopen('https://example.org').read()",
    "with open('a.txt') as f:\n    text = f.read()",
    "with open('a.txt', 'w') as f:\n    f.write('x')",
    "from pathlib import Path\nPath('a').open().read()",
    "from pathlib import Path\nPath('a.txt').write_text('x')",
    "con.execute('SELECT * FROM t')",
    "con.execute('with x as (select 1) select * from x')",
    "import subprocess\nsubprocess.run(['git', 'status'])",
    "import subprocess\nsubprocess.run('ls -l | head', shell=True)",
    "import subprocess, sys\nsubprocess.check_call([sys.executable, '-m', 'pip', 'install', 'numpy'])",
    "import os\nos.makedirs('d', exist_ok=True)\nos.environ['A'] = 'b'",
    "while True:\n    break",
    "for input in inputs:\n    model(input)",
    "[len(input) for input in inputs]",
    "import os\ndef clean():\n    os.remove('x')",
    "class A:\n    def go(self):\n        raise SystemExit",
    "model.eval()",
    "import re\np = re.compile('a')",
    "exec('x = 1')",
    "!ls -l && pwd; echo $HOME | wc -l",
    "files = !ls",
    "%%bash\ncd sub\nexport A=1\ncat <<'EOF' > a.txt\nrm -rf /\nEOF\n# rm x\nmkdir -p a/b",
    "%cd sub",
    "%pip install numpy",
    "%matplotlib inline",
    "%time x = f()",
    "%%time\nx = f()",
    "%%writefile a.py\nimport os; os.remove('x')",
    "%ls",
    "df?",
    "direction.replace({1: 2})",
    "profile_df.replace([1])",
    "client.query('select 1')\ndf.query('a > 1')",
    "df.drop(columns=['a'])",
    "!ls | tee list.txt",
]
UNSAFE = [
    ("import builtins\nbuiltins.input()", "asks for input"),
    ("class A:\n    gone = lambda self: os.remove('x')\nimport os\nA().gone()", "deletes files"),
    ("def clean(): gone('x')\nfrom os import remove as gone\nclean()", "deletes files"),
    ("import http.client\nc = http.client.HTTPSConnection('h')\nc.request('POST', '/', body='x')", "sends"),
    ("import urllib3\nurllib3.PoolManager().request('DELETE', url)", "sends"),
    ("from kafka import KafkaProducer\np = KafkaProducer()\np.send('topic', b'x')", "sends"),
    ("model.push_to_hub('me/model')", "sends"),
    ("import docker\ndocker.from_env().containers.run('image')", "sends"),
    ("import duckdb\nduckdb.sql('insert into t values (1)')", "database"),
    ("spark.sql('DROP TABLE t')", "database"),
    ("client.query('DELETE FROM t WHERE a').result()", "database"),
    ("bucket.blob('a').delete()", "deletes"),
    ("db.things.drop()", "deletes"),
    ("df.write.mode('append').parquet('x')", "adds"),
    ("df.to_parquet('x', append=True)", "adds"),
    ("import builtins\nbuiltins.open('x', 'a')", "adds"),
    ("!echo x | tee -ia log", "tee"),
    ("import os\nos.remove('x')", "deletes"),
    ("import os as o\no.unlink('x')", "deletes"),
    ("from os import remove as rm\nrm('x')", "deletes"),
    ("from shutil import rmtree\nrmtree('d')", "deletes"),
    ("import os\nlist(map(os.remove, files))", "deletes"),
    ("import shutil\nshutil.move('a', 'b')", "moves"),
    ("from pathlib import Path\nPath('a').unlink()", "deletes"),
    ("p.unlink(missing_ok=True)", "deletes"),
    ("from pathlib import Path\n(Path('d') / 'a').rename('b.txt')", "moves"),
    ("path.replace(target)", "moves"),
    ("import os\nos.rename('a', 'b')", "moves"),
    ("open('log', 'a').write('x')", "adds to a file"),
    ("with open('log', mode='r+') as f:\n    pass", "adds to a file"),
    ("open('log', mode)", "cannot be seen"),
    ("Path('log').open('a')", "adds to a file"),
    ("df.to_csv('out.csv', mode='a')", "adds to a file"),
    ("df.to_sql('t', con)", "database"),
    ("cur.execute('INSERT INTO t VALUES (1)')", "database"),
    ("cur.execute(f'DELETE FROM {table}')", "database"),
    ("con.execute(text('update t set a = 1'))", "database"),
    ("con.execute(query)", "cannot be seen"),
    ("con.commit()", "database"),
    ("import requests\nrequests.post(url, json={})", "network"),
    ("import requests\ns = requests.Session()\ns.put(url)", "network"),
    ("import requests\nrequests.request(method, url)", "network"),
    ("import httpx\nwith httpx.Client() as c:\n    c.delete('https://example.org/1')", "network"),
    ("import httpx\nasync with httpx.AsyncClient() as c:\n    await c.patch(url)", "network"),
    ("client.put('https://example.org/1')", "network"),
    ("from urllib.request import urlopen\nurlopen(url, data=b'x')", "network"),
    ("import smtplib\nsmtplib.SMTP('h').sendmail(a, b, c)", "network"),
    ("import ftplib\nf = ftplib.FTP('h')\nf.storbinary('STOR a', file)", "network"),
    ("import socket\ns = socket.socket()\ns.send(b'x')", "network"),
    ("import boto3\nc = boto3.client('s3')\nc.put_object(Bucket='b', Key='k')", "network"),
    ("import paramiko\nc = paramiko.SSHClient()\nc.exec_command('ls')", "network"),
    ("import subprocess\nsubprocess.run(['make'])", "make"),
    ("import subprocess\nsubprocess.run(cmd)", "cannot be seen"),
    ("from subprocess import Popen\nPopen(['server'])", "server"),
    ("import os\nos.system('rm x')", "rm x"),
    ("import os\nos.fork()", "starts a process"),
    ("import os\nos.execv('/bin/sh', [])", "starts a process"),
    ("name = input('? ')", "asks for input"),
    ("exit()", "ends the kernel"),
    ("import sys\nsys.exit(1)", "ends the kernel"),
    ("import os\nos._exit(0)", "ends the kernel"),
    ("import os, signal\nos.kill(1, signal.SIGTERM)", "ends a process"),
    ("raise SystemExit", "ends the kernel"),
    ("exec(code)", "not seen"),
    ("eval('__import__(\"os\")') if x else exec('import os; os.remove(1)')", "deletes"),
    ("import os\ndef clean():\n    os.remove('x')\nclean()", "`clean`"),
    ("import os\nf = lambda: os.remove('x')\nf()", "`f`"),
    ("class A:\n    def go(self):\n        raise SystemExit\nA().go()", "`.go`"),
    ("class A:\n    def __init__(self):\n        input()\nA()", "`A`"),
    ("from os import *\nremove('x')", "deletes"),
    ("ip = get_ipython()\nip.system('rm x')", "rm x"),
    ("get_ipython().run_command('ls')", "run_command"),
    ("%%bash --bg\nls", "leaves a process behind"),
    ("!rm x", "rm x"),
    ("!ls; rm x", "rm x"),
    ("!echo a#b; rm x", "rm x"),
    ("!echo '#x'; rm x", "rm x"),
    ("out = !make", "make"),
    ("%%bash\necho x >> log", "adds to the file log"),
    ("%%bash\nsleep 100 &", "leaves a process behind"),
    ("%%bash\necho $(rm x)", "substitution"),
    ('%%bash\necho "`rm x`"', "substitution"),
    ("%%bash\necho 'open", "not understood"),
    ("%%bash\nfind . -name '*.pyc' -delete", "find"),
    ("%%bash\npip uninstall -y numpy", "pip uninstall"),
    ("%%bash\ngit commit -m x", "git commit"),
    ("%%bash\ngit branch new", "git branch"),
    ("%%bash\nenv A=1 rm x", "env"),
    ("%%bash\ncurl -X POST https://example.org", "curl"),
    ("%%bash\nif true; then rm x; fi", "rm x"),
    ("%%bash\ncat <<EOF\n$(rm x)\nEOF", "substitution"),
    ("%%bash\ntee -a log", "tee"),
    ("%%bash\nmkdir d", "mkdir"),
    ("%run script.py", "%run"),
    ("%rm x", "rm"),
    ("%time clean(input())", "asks for input"),
    ("%%time\nimport os\nos.remove('x')", "deletes"),
    ("%%writefile -a a.py\nx = 1", "adds to a file"),
    ("%%perl\n1", "%%perl"),
    ("x = = 1", "cannot be parsed"),
]


@pytest.mark.parametrize("source", SAFE)
def test_nothing_speaks_against_repeating(source: str) -> None:
    assert reason_against(RecordedCell(source)) is None


@pytest.mark.parametrize(("source", "problem"), UNSAFE)
def test_a_cell_that_is_not_safe_to_repeat_has_its_reason(source: str, problem: str) -> None:
    assert problem in (reason_against(RecordedCell(source)) or "")


def test_a_command_is_judged_like_a_script() -> None:
    assert reason_against(RecordedCell("cd sub && ls", "command")) is None
    assert "rm x" in (reason_against(RecordedCell("cd sub && rm x", "command")) or "")


def test_another_language_is_not_judged() -> None:
    assert "typescript" in (reason_against(RecordedCell("let x = 1", language="typescript")) or "")


def test_cells_with_syntax_errors_are_safe_to_repeat() -> None:
    assert reason_against(RecordedCell("x = = 1", status="error", ename="SyntaxError")) is None


def test_a_function_of_an_earlier_cell_is_followed_until_it_is_defined_again() -> None:
    judge = SideEffectChecker()
    assert judge.reason(RecordedCell("import os as system\ndef clean(p):\n    system.remove(p)")) is None
    assert "`clean`" in (judge.reason(RecordedCell("clean('x')")) or "")
    assert judge.reason(RecordedCell("def twice(p):\n    clean(p)")) is None
    assert "`clean`" in (judge.reason(RecordedCell("for p in ps: twice(p)")) or "")
    assert "deletes" in (judge.reason(RecordedCell("system.remove('x')")) or "")
    assert judge.reason(RecordedCell("def clean(p):\n    return p\ndef twice(p):\n    clean(p)")) is None
    assert judge.reason(RecordedCell("twice('x'); clean('x')")) is None


def test_computed_names_are_not_seen() -> None:
    assert reason_against(RecordedCell("import os\ngetattr(os, 're' + 'move')('x')")) is None


NAMES = [
    ("a = b = 1\nc, (d, *e) = f", "a b c d e"),
    ("a += 1\nb: int = 2\nc: int", "a b c"),
    ("for i in x:\n    y = i", "i y"),
    ("with a() as b, c() as (d, e): pass", "b d e"),
    ("import os.path, numpy as np\nfrom a import b as c, d", "os np c d"),
    ("def f(x):\n    y = 1\nclass C:\n    z = 2", "f C"),
    ("if (n := 1): pass\n[m := k for k in x]", "n m"),
    ("a = 1\ndel a\nb = 2", "b"),
    ("x.y = 1\nx[0] = 2", ""),
    ("files = !ls", "files"),
    ("%time x = 1", "x"),
    ("%%time\nx = 1", "x"),
    ("match p:\n    case {'a': q, **r}: pass", "q r"),
    ("x = = 1", ""),
]


@pytest.mark.parametrize(("source", "names"), NAMES)
def test_names_that_a_cell_binds(source: str, names: str) -> None:
    assert {name for name, is_bound in name_changes(source).items() if is_bound} == set(names.split())


def test_names_that_a_cell_deletes_and_uses() -> None:
    assert name_changes("del a\nb = 1") == {"a": False, "b": True}
    assert used_names("def f(x):\n    return x + y\nz = w") == {"x", "y", "w"}


def test_definitions_are_a_cell_of_their_own() -> None:
    code, names = definitions("import os\nx = slow()\ndef f():\n    return x\nclass C: pass")
    assert "slow" not in code
    assert names == {"os", "f", "C"}


DEEP = [
    "x = " + "1 + " * 2000 + "1",
    "def f():\n    return " + "1 + " * 2000 + "1",
    "x" + ".y" * 2000,
    "(" * 5000,
    "not " * 2000 + "x",
]


@pytest.mark.parametrize("source", DEEP, ids=range(len(DEEP)))
def test_code_that_is_nested_too_deeply_is_not_safe_and_breaks_nothing(source: str) -> None:
    assert reason_against(RecordedCell(source)) is not None
    assert name_changes(source).keys() | used_names(source) <= {"x", "f"}
    assert definitions(source)[0] == ""


@pytest.mark.no_cover
def test_a_long_script_is_judged_to_its_end() -> None:
    assert reason_against(RecordedCell("%%bash\n" + "echo 'x' | wc -l;\n" * 6_000)) is None


LATER = [
    "def main():\n    clean()\n\ndef clean():\n    import os\n    os.remove('x')\n\nmain()",
    "def a():\n    b()\n\ndef b():\n    c()\n\ndef c():\n    import os\n    os.remove('x')\n\na()",
    "class A:\n    def go(self):\n        self.rm()\n\n    def rm(self):\n        import os; os.remove('x')\n\nA().go()",
    "class A:\n    def __init__(self):\n        self.rm()\n\n    def rm(self):\n        import os; os.remove('x')\n\nA()",
]


@pytest.mark.parametrize("source", LATER)
def test_functions_used_before_their_definition_are_found(source: str) -> None:
    assert "deletes files" in (reason_against(RecordedCell(source)) or "")
    definitions_only = source.rpartition("\n")[0]
    judge = SideEffectChecker()
    assert judge.reason(RecordedCell(definitions_only)) is None
    assert "deletes files" in (judge.reason(RecordedCell(source.rpartition("\n")[2])) or "")


def test_a_function_that_binds_the_name_itself_does_not_use_the_later_one() -> None:
    source = "def a(clean):\n    clean()\n\ndef clean():\n    import os\n    os.remove('x')\n\na(print)"
    assert reason_against(RecordedCell(source)) is None


#: Earlier cells, and one that uses their functions: may it read files, or do more?
USES = {
    "a function": ("def get():\n    return open('a').read()", "get()", True, ""),
    "a lambda behind a value": ("x = 1; get = lambda: open('a').read()", "get()", True, ""),
    "a value beside a lambda": ("x = 1; get = lambda: open('a').read()", "x + 1", False, ""),
    "another name": ("import pandas as pd\nget = pd.read_csv", "df = get('a')", True, ""),
    "another name of a function": ("def get():\n    return open('a').read()\nfetch = get", "fetch()", True, ""),
    "an imported function": ("from pandas import read_csv as get", "df = get('a')", True, ""),
    "a built-in function": ("get = open", "get('a')", True, ""),
    "a bound argument": ("from functools import partial\nget = partial(pd.read_csv, sep=';')", "get('a')", True, ""),
    "one of a dictionary": ("tools = {'get': pd.read_csv}", "tools['get']('a')", True, ""),
    "an attribute": ("tools.get = pd.read_csv", "tools.get('a')", True, ""),
    "a method": ("get = Path('a').read_text", "get()", True, ""),
    "an instance": ("class A:\n    def get(self): return open('a').read()\na = A()", "a.get()", True, ""),
    "a loop": ("for get in (pd.read_csv, pd.read_json): pass", "get('a')", True, ""),
    "a walrus": ("if (get := pd.read_csv): pass", "get('a')", True, ""),
    "a value that was read": ("df = pd.read_csv('a')", "df.mean()", False, ""),
    "a value that a function has read": ("def get():\n    return open('a').read()\ntext = get()", "text + 'x'", False, ""),
    "another library": ("import requests as r", "r.get('a')", True, "it uses `r`"),
    "another clock": ("import time\nclock = time.time", "t = clock()", True, "it uses `clock`"),
    "a function that asks others": ("def ask():\n    return requests.get('a')", "ask()", True, "it uses `ask`"),
    "a function of one that asks": (
        "def a():\n    return httpx.get('a')\ndef b():\n    return a()",
        "b()",
        True,
        "it uses `b`",
    ),
    "the session's module": ("import helpers", "helpers.f()", True, "it uses `helpers`"),
    "a name of the session's module": ("from helpers import f", "f()", True, "it uses `f`"),
    "all of the session's module": ("from helpers import *", "g()", False, "it may use functions of `helpers`"),
    "a script": ("%run -i helpers.py", "g()", False, "it may use functions of `helpers.py`"),
    "code that is nested too deeply": ("f = lambda: " + "1 + " * 2000 + "1", "g()", False, "it may use functions of `a cell"),
}


@pytest.mark.parametrize("case", USES)
def test_outside_use_is_followed_through_other_names(case: str) -> None:
    before, cell, reads, reason = USES[case]
    use = OutsideUse(lambda name: name == "helpers")
    use.learn(before)
    use.learn(cell)
    actual = use.explain_difference(cell, is_new=False)
    assert (use.reads_files(cell), actual[: len(reason)], bool(actual)) == (reads, reason, bool(reason))
