"""Texts for models: the server's instructions, and a description of each tool: state, results and next steps."""

from __future__ import annotations

#: Note about idle kernels, for tools that create sessions and for the instructions.
IDLE = """
A session that is idle for {idle} loses its kernel and all variables; its next cell reports that. Its files are kept.
"""

INSTRUCTIONS = """\
kernelexec runs code and shell commands in persistent Jupyter kernels.

- A session is one persistent kernel with its own directory (its workspace). It is created when its name is first used. \
Variables, imports and functions stay from call to call until the kernel is replaced. Use one session per task; \
sessions do not share variables.
- Code and commands run in the workspace: use relative paths for files. Plots and tables that a cell displays are also \
saved there under outputs/.
- A call blocks for `wait` seconds (45 by default). If the cell still runs then, the answer has status running and an \
execution_id, and the cell continues: call wait_execution(execution_id) until it ends. Do not send the code again.
- `timeout` is the longest run time of a cell ({timeout:g} s by default): set a larger one for long work. A cell that \
exceeds it is interrupted, and its variables are usually kept.
- A failed cell is an answer with its traceback and state. "state kept": all variables still exist; fix the code and \
run only the missing part. "state lost": the kernel was replaced; repeat the imports and definitions that you need. \
Files still exist.
- Long output is shown as its head and tail; read_output(execution_id) has all of it.
"""
FILES = """\
- list_files, read_file, write_file and delete_files access the workspace without running code, even while a cell runs.
"""

EXECUTE_CODE = """\
Run code in a session's persistent kernel and return its output: text, tracebacks and pictures.

Variables, imports and functions persist in the session from call to call, as in a notebook; sessions do not share \
them. The value of the last expression is shown without print. Lines with !command and cells that begin with %%bash \
work too. language="bash", "javascript" or the language of an installed Jupyter kernel runs other code. Plots are \
returned as pictures (matplotlib: just call plt.plot or df.plot).

Returns within `wait` seconds. If the cell still runs then, the answer has status running and an execution_id, and the \
cell continues: call wait_execution(execution_id), do not send the code again. The first line of the answer has the \
status, and whether the state (all variables) was kept or lost. After state lost, repeat the definitions that you need. \
Output over 20,000 characters is shown as its head and tail; read_output(execution_id) has the rest.

Examples:
  execute_code(code="import pandas as pd\\ndf = pd.read_csv('sales.csv')\\ndf.describe()")
  execute_code(code="df.groupby('month').revenue.sum().plot()")   # df still exists
  execute_code(code="model.fit(X, y)", timeout=1800, wait=10)     # long: continue with wait_execution
"""

EXECUTE_COMMAND = """\
Run a shell command (bash) in a session's workspace; return stdout, stderr and the exit code.

`cd` and `export` persist in the session for later commands; work_dir applies to one command only. execute_code in the \
same session uses the same files. Standard input is empty: use options like -y instead of answering questions.

Returns success, exit_code, stdout, stderr, execution_time (seconds), command, work_dir, status, execution_id, \
timed_out, truncated, state, files and notes. A refused command did not run: exit_code is -1 and stderr has the \
reason. If the command still runs after `wait` seconds, status is running: call wait_execution(execution_id), do not \
send it again.

Examples:
  execute_command(command="git clone https://example.org/repo.git && cd repo")
  execute_command(command="make test", timeout=900)               # runs in repo
"""

WAIT_EXECUTION = """\
Wait for an execution that had status running; return its new output and, once it has ended, its result with pictures.

Blocks for at most `wait` seconds. If the execution still runs then, call this again, with the cursor of the last \
answer to get only new output. The execution persists without calls; interrupt_kernel ends it. A session keeps its \
newest finished executions, so a result can be read again.

Example: wait_execution(execution_id="3f2b...", wait=45)
"""

READ_OUTPUT = """\
Read the whole stdout and stderr of an execution, page by page, including omitted parts. Works while it runs.

`offset` and `limit` are in bytes; the last line of a page has the next offset. With `grep`, a regular expression, \
only matching lines are returned. The output persists as long as the session keeps the execution (its newest hundred).

Examples:
  read_output(execution_id="3f2b...", offset=20000)
  read_output(execution_id="3f2b...", grep="(?i)error|warning")
"""

INTERRUPT_KERNEL = """\
Interrupt the running cell of a session and return its result. Variables persist. If the cell ignores interrupts, the \
kernel is replaced, and the answer reports that. Queued cells run next.
"""

RESTART_KERNEL = """\
Replace a session's kernel by a new one. All variables and imports are lost, and so are cd and export of commands; \
files in the workspace persist. To stop a long cell use interrupt_kernel, which keeps the state.
"""

CREATE_SESSION = """\
Create a session with a handle instead of a name. Returns the handle: pass it as `session` to all other tools.

The handle works from any connection, and no other agent can find the session. It persists until close_session or the \
end of this server. Use it if the server cannot identify agents, or to keep two tasks apart.

Example: create_session()
"""

CLOSE_SESSION = """\
Close a session: end its kernel, its variables and all processes of its code. Its files are kept. No state persists: \
the next use of its name starts a new kernel.

Example: close_session(session="analysis")
"""

LIST_SESSIONS = """\
List the open sessions: name, busy, kernel_epoch (increases with each new kernel; variables persist within one), \
workspace (the directory of its files), and the running and queued executions. A session is created by using its name \
in execute_code or execute_command, and persists until this server ends.
"""

LIST_VARIABLES = """\
List the variables that persist in a session's kernel: name, type, shape, size_bytes and a short text. Works while a \
cell runs. Call this before you compute a value again.
"""

START_BACKGROUND = """\
Start a shell command in the background: a server, a watcher or a long job. It persists while cells run, has no \
timeout and no standard input, and ends with the session's kernel, also on a restart. Returns its command_id at once.

Examples:
  start_background(command="python -m http.server 8000")
  start_background(command="npm run dev", work_dir="app")
"""

BACKGROUND_OUTPUT = """\
Return a background command's status (running, stopped, failed, killed, or lost with its kernel), exit_code, and newest \
lines of stdout and stderr. The newest 10,000 lines persist. Works while a cell runs.

Example: background_output(command_id="shell_1f0c9a2b", lines=50)
"""

KILL_BACKGROUND = """\
End a background command with all its processes: SIGTERM, then SIGKILL after half a second. Its output persists.
"""

LIST_BACKGROUND = """\
List the background commands of a session, including ended ones. They persist with their output until the kernel ends.
"""

RUN_TESTS = """\
Test code: run it, then each case after it, in separate processes that see the session's variables but cannot change them.

A case is source text: an expression that must be true, or statements with assert. Each case gets PASS, FAIL or ERROR \
with a message, the line and its output. A case that raises, hangs or exits does not affect others. Only files \
persist: to keep the code, send it to execute_code.

Examples:
  run_tests(code="def half(n): return n / 2", cases=["half(4) == 2", "assert half(1) == 0.5"])
  run_tests(cases=["df.notna().all().all()", "len(df) == 1200"])   # df of the session
"""

INSTALL_PACKAGES = """\
Install Python packages into a session's virtual environment. Cells can import them at once.

Packages persist in the workspace for later kernels of the session, and variables are kept. Use this instead of pip in \
a cell or command, which may have no network. An installation longer than `wait` seconds continues, and the answer has \
status running: call this again with the same packages to get the result.

Example: install_packages(packages=["numpy>=2", "httpx"])
"""

LIST_FILES = """\
List a directory of a session's workspace: path, kind (file, directory, link, other) and size_bytes of each entry. \
Files persist after kernels and sessions end. Directories of tools, such as .git and node_modules, are not \
entered. Shows at most 500 entries, fewer with long paths: use path or pattern to narrow the list.

Examples:
  list_files()
  list_files(path="data", recursive=True, pattern="*.csv")
"""

READ_FILE = """\
Read a text file of a session's workspace in pieces: the last line of the answer has the start of the piece, the size \
of the file, and the next offset. The read persists in the session as a permission: only then may the file be deleted. \
Links are not followed.

Examples:
  read_file(path="notes/plan.md")
  read_file(path="server.txt", offset=20000)
"""

WRITE_FILE = """\
Write a text file in a session's workspace: replace it, or with append=True add to its end. Missing directories are \
created. Files persist after kernels end, and code of the session sees them at once.

Examples:
  write_file(path="src/model.py", content="import math\\n...")
  write_file(path="notes.md", content="- one more\\n", append=True)
"""

DELETE_FILES = """\
Delete one file or directory of a session's workspace by path, or many files by patterns. Deletion cannot be undone; \
all other files persist. Before you delete a file, read it with read_file or write it with write_file; generated files \
(caches, logs, build, dist) need neither. The workspace itself, .git, .env, venv, node_modules and the like cannot be \
deleted.

With include, each file is deleted or refused separately, and the answer lists refused files with the reason.

Examples:
  delete_files(path="draft.txt")
  delete_files(path="results", recursive=True)
  delete_files(include=["*.tmp", "__pycache__"], exclude=["keep.tmp"])
"""
