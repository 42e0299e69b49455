"""What a model reads of the server: how it works, and of every tool what persists, what comes back and what to do next."""

from __future__ import annotations

#: Characters of output that one answer shows; more is had by ``read_output``.
PREVIEW_CHARS = 20_000

#: Where idle kernels end: of the tools that make sessions, and of the server.
IDLE = """
A session that is not used for {idle} loses its kernel, with all variables: its next cell says so. Its files stay.
"""

INSTRUCTIONS = """\
kernelexec runs code and shell commands in persistent Jupyter kernels.

- A session is one persistent kernel with a directory of its own (its workspace). It is made when its name is first \
used, and variables, imports and functions stay in it from call to call until the kernel is replaced. Use one \
session for one task; different names do not see each other's variables.
- Code and commands run in the workspace: write files there by relative paths. Plots and tables that a cell displays \
are also saved there under outputs/.
- A call blocks for `wait` seconds (45 by default). If the cell has not ended by then, the answer says status \
running and an execution_id, and the cell goes on: call wait_execution(execution_id) until it has ended. Do not send \
the code again.
- `timeout` is how long a cell may run at all ({timeout:g} s by default): give a larger one for long work. A cell \
over it is interrupted, and its variables are usually kept.
- A failed cell is an answer, with its traceback and state. "state kept" means that all variables are still there: \
mend the code and run only what is missing. "state lost" means that the kernel was replaced: import and define again \
what you need; files are still there.
- Of long output the head and tail are shown; read_output(execution_id) has all of it.
"""
FILES = """\
- list_files, read_file, write_file and delete_files work on the workspace without running code, also while a cell runs.
"""

EXECUTE_CODE = """\
Run code in a session's persistent kernel and return its output: text, tracebacks and pictures.

Variables, imports and functions persist in the session from call to call, as in a notebook; different sessions do \
not see each other's. The value of the last expression is shown without print. Lines with !command and cells that \
begin with %%bash work too; language="bash", "javascript" or an installed Jupyter kernel's runs other code. \
Plots come back as pictures (matplotlib: just call plt.plot or df.plot).

Comes back within `wait` seconds. If the cell still runs then, the answer says status running with an execution_id \
and the cell goes on: call wait_execution(execution_id), do not send the code again. The first line of the answer \
says the status and whether the state (all variables) was kept or lost; after state lost define again what you need. \
Of more than 20,000 characters the head and tail are shown, and read_output(execution_id) has the rest.

Examples:
  execute_code(code="import pandas as pd\\ndf = pd.read_csv('sales.csv')\\ndf.describe()")
  execute_code(code="df.groupby('month').revenue.sum().plot()")   # df is still there
  execute_code(code="model.fit(X, y)", timeout=1800, wait=10)     # long: collect it with wait_execution
"""

EXECUTE_COMMAND = """\
Run a shell command (bash) in a session's workspace: stdout and stderr apart, and its exit code.

`cd` and `export` persist in the session from one command to the next; work_dir counts for one command only. Files \
are shared with execute_code of the same session. Standard input is empty: use options like -y instead of answering \
questions.

Returns success, exit_code, stdout, stderr, execution_time (seconds), command and work_dir, and with them status, \
execution_id, timed_out, truncated, state, files and notes. A command that was refused did not run: exit_code -1, \
the reason in stderr. If it still runs after `wait` seconds, status is running: call wait_execution(execution_id), \
do not send it again.

Examples:
  execute_command(command="git clone https://example.org/repo.git && cd repo")
  execute_command(command="make test", timeout=900)               # runs in repo
"""

WAIT_EXECUTION = """\
Collect an execution that answered status running: its new output and, once it has ended, its result with pictures.

Blocks `wait` seconds at most; if it still runs then, call this again, with the cursor of the last answer to see \
only what is new. The execution persists whether you call or not; interrupt_kernel ends it. A session \
remembers its newest finished executions, so a result can be had again.

Example: wait_execution(execution_id="3f2b...", wait=45)
"""

READ_OUTPUT = """\
Read the whole stdout and stderr of an execution, page by page, also of one that still runs and what its answer had \
to leave out.

`offset` and `limit` are bytes; the last line of a page says how to read on. With `grep`, a regular expression, only \
lines that match are given. Output persists as long as the session remembers the execution (its newest \
hundred).

Examples:
  read_output(execution_id="3f2b...", offset=20000)
  read_output(execution_id="3f2b...", grep="(?i)error|warning")
"""

INTERRUPT_KERNEL = """\
Interrupt what runs in a session now, and return its result. Variables persist: the kernel is not replaced unless \
the cell obeys no interrupt, which the answer then says. Cells that wait behind it run next.
"""

RESTART_KERNEL = """\
Replace a session's kernel by a fresh one. All variables and imports, and cd and export of commands, are lost; files \
in the workspace persist. To end a cell that runs too long use interrupt_kernel, which keeps the state.
"""

CREATE_SESSION = """\
Make a new session that has a handle instead of a name, and return the handle: pass it as `session` to all other tools.

Who has the handle has the session, from any connection, and nobody else can find it. It persists until close_session, \
or as long as this server. Use it where the server cannot tell agents apart, and wherever two tasks must not meet.

Example: create_session()
"""

CLOSE_SESSION = """\
End a session: its kernel with all variables, and all that its code started. Its files stay. Nothing of its state \
persists, and a later use of its name begins anew.

Example: close_session(session="analysis")
"""

LIST_SESSIONS = """\
List the open sessions: name, busy, kernel_epoch (grows with every new kernel: variables persist within one), \
workspace (the directory of its files), and the executions that run or wait. A session is made by using its name in \
execute_code or execute_command, and persists as long as this server.
"""

LIST_VARIABLES = """\
List the variables that persist in a session's kernel: name, type, shape, size_bytes and a short text. Works while \
a cell runs. Look here before computing something again.
"""

START_BACKGROUND = """\
Start a shell command that runs beside a session's cells: a server, a watcher, a long job. It persists while cells run, \
has no timeout and no standard input, and ends with the session's kernel (a restart loses it). Returns its command_id at once.

Examples:
  start_background(command="python -m http.server 8000")
  start_background(command="npm run dev", work_dir="app")
"""

BACKGROUND_OUTPUT = """\
Look at a background command: status (running, stopped, failed, killed, or lost with its kernel), exit_code, and the \
newest lines of its stdout and stderr, of which the newest 10,000 persist. Works while a cell runs.

Example: background_output(command_id="shell_1f0c9a2b", lines=50)
"""

KILL_BACKGROUND = """\
End a background command with all of its processes: SIGTERM, and SIGKILL half a second later. What it has written persists.
"""

LIST_BACKGROUND = """\
List the background commands of a session, also those that have ended: they persist, with their output, until the kernel does \
not.
"""

RUN_TESTS = """\
Test code: run it, then each case behind it, in processes of their own that see the session's variables and change none.

A case is source text: an expression that must be true, or statements with assert. Each gets PASS, FAIL or ERROR with \
a message, the line, and what it printed; one that raises, hangs or exits costs no other. Nothing of it persists but \
files: to keep the code, send it to execute_code.

Examples:
  run_tests(code="def half(n): return n / 2", cases=["half(4) == 2", "assert half(1) == 0.5"])
  run_tests(cases=["df.notna().all().all()", "len(df) == 1200"])   # df of the session
"""

INSTALL_PACKAGES = """\
Install Python packages into a session's virtual environment, from where this server takes them; cells find them at once.

They persist in the workspace, for later kernels of the session too, and variables are kept. Use this and not pip in a \
cell or a command: those may have no network. An installation that takes longer than `wait` seconds goes on, and the \
answer says status running: call this again with the same packages to collect it.

Example: install_packages(packages=["numpy>=2", "httpx"])
"""

LIST_FILES = """\
List a directory of a session's workspace: path, kind (file, directory, link, other) and size_bytes of each entry. \
Files persist beyond kernels and sessions. Directories that tools fill, as .git and node_modules, are not entered. At \
most 500 entries are shown, fewer of long paths: narrow it by path or pattern.

Examples:
  list_files()
  list_files(path="data", recursive=True, pattern="*.csv")
"""

READ_FILE = """\
Read a text file of a session's workspace, piece by piece: the last line of the answer says where the piece begins, \
how large the file is, and how to read on. That a file was read persists in the session: only then may it be deleted. \
Links are not followed.

Examples:
  read_file(path="notes/plan.md")
  read_file(path="server.txt", offset=20000)
"""

WRITE_FILE = """\
Write a text file in a session's workspace: all of it at once, or with append=True behind what is there. Directories \
that are missing are made. Files persist beyond kernels, and code of the session sees them at once.

Examples:
  write_file(path="src/model.py", content="import math\\n...")
  write_file(path="notes.md", content="- one more\\n", append=True)
"""

DELETE_FILES = """\
Delete one file or directory of a session's workspace by path, or many files by patterns. What is deleted does not \
come back; all else persists. A file must have been read with read_file, or written with write_file, before it is \
deleted, unless tools make it again (caches, logs, build, dist). The workspace itself stays, and so do .git, .env, \
venv, node_modules and the like.

With include each file by itself is deleted or refused, and the answer says which and why.

Examples:
  delete_files(path="draft.txt")
  delete_files(path="results", recursive=True)
  delete_files(include=["*.tmp", "__pycache__"], exclude=["keep.tmp"])
"""
