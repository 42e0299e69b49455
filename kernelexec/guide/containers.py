r"""Containers: what they are given, their options, images, root in them.

## Containers

Every kernel has a container of its own: no network, read-only root, all capabilities dropped, no new privileges, an
init process, limits on memory, swap, processors, processes and descriptors, `/tmp` in memory, and the caller's user id,
so files in the workspace are yours. It sees its workspace, what you mount, and nothing of your environment. The channel
is unix sockets in a private directory. The kernel that follows one that ended, or a restart, is forked in the same
container, where nothing else runs by then and all that was in memory (`/tmp`, `/dev/shm`) is cleared; after changed
options, or with a root that can be written, it gets a new one. Each relaxation is an option with a name
(`Config(container=...)`):

| option | default | |
| --- | --- | --- |
| `image` | `kernelexec/agent` | a name, or several of which the first that is there is taken; `pull` gets others, never `kernelexec/...` |
| `memory_bytes` `cpus` `pids` | 1 GiB, 1, 256 | swap is within the memory; `tmp_bytes`, `shm_bytes`, `Config(limits=...)` |
| `network` | `none` | `bridge`, `host` |
| `mounts` | | `{"source": ..., "target": ..., "read_only": True}`: context paths, other agents' outputs; what would open the wall is refused by name |
| `credentials` | `()` | of `ssh_keys`, `git_config`, `gh_config`, `npm_config`, `pypi_config` what all code in the container may read, in a home in memory |
| `layout` | `host` | workspace and mounts at their own paths, or `classic`: `/workspace`, `/context/<name>` |
| `user` | the caller's | `"1000:1000"`: for callers that are root |
| `mode` | `persistent` | `ephemeral`: a container for every cell |
| `adopt` `orphan_seconds` | True, 300 s | whether, and how long, containers wait for a new owner when theirs is killed |

`Config(profile=...)` sets memory, processors and timeout by one name: simple (256 MiB, 0.5, 30 s), medium (512 MiB, 1,
120 s), complex (1 GiB, 2, 600 s), default (1 GiB, 1, 300 s), or one of your own (`profiles`).
`session.set_limits("complex")`, or figures, changes a living container, its variables kept; `session.stats()` says what
it uses. From 80 % of its memory on, results name the biggest variables; a command that is killed for want of memory
costs no state; when the kernel itself is, the result says `oom` and the limit.

`code_execution_config` takes AutoGen's dict as it is: `work_dir`, `use_docker` (True, False, an image or a list),
`timeout`, `last_n_messages`, `docker_image`, `docker_container_name`, and `docker_run_args`, whose arguments become
options (`--network none --memory 512m --cpus 0.5 --read-only ...`); what would open the wall (`--privileged`, host
namespaces, devices, an engine's socket, directories of the system) is refused by name. `False` switches execution off.
In a container already these keys choose nothing unless `KERNELEXEC_FORCE_CONTAINER=1` does: the result's `isolation`
says where code ran.

If the process that owns a session is killed, its container goes on. The next executor in the same workspace takes it
over: variables, the running cell with its output from before and meanwhile, its journal and notebook. It keeps the
network, mounts, limits and layout that it was made with; cells that only waited have not run, and kernels of other
languages ended, as their next cell says. What nobody takes over ends by itself and is removed by whoever starts next;
containers without our label are never touched.

With `Config(log_dir=...)` each session keeps `<log_dir>/<session>/docker_container.log`: what ran, what came out
(bounded), exit codes, and what became of its kernels, each line with its time, as it happens. A `log_dir` where
sessions work (in the workspace, or in `work_dir`) is refused before anything starts; in a mount that containers can
write it is read only for them.

What stops what is the README's table of that name.

A root caller's kernels are root without capabilities in their container; set `user` for more distance. Code that you
must assume to attack the kernel of the machine needs a virtual machine.

**Root in the container.** `--sudo` (`Config(container={"sudo": True})`) lets code become root by `sudo`, whoever runs
it: the image is the one with `-sudo` (`kernelexec image build agent --sudo`), an image of your own stays and needs sudo
itself. `no_new_privileges` is lifted, root keeps the nine capabilities that `cap_add` may name, and the root directory
can be written unless `read_only_root` is set. The network stays as it is: packages need `--network bridge`. What root
writes in the workspace and in writable mounts is root's on this machine too, programs with the set-user-id bit among
it.

**Images.** `--base-image` builds upon any Debian or Ubuntu with Python 3.11 or newer, `--host-ca` and `--extra-ca`
trust a private authority, `--sudo` makes a variant with it. Without network: `kernelexec image wheels`, then `build
--wheels`. `kernelexec image check IMAGE` says whether your own image serves, and how to add what it lacks; `kernelexec
image template` writes a Dockerfile for you to change; `docker buildx build --platform linux/amd64,linux/arm64` builds
it for several architectures. **Where unix sockets do not reach a container** (Docker Desktop), its kernel is reached by
five ports on 127.0.0.1, encrypted with CurveZMQ; `container.transport` forces `ipc` or `tcp`. Ports need a network: in
place of `none` the kernel gets one that leads nowhere: no internet, no names, no other container. What listens on all
addresses of the engine's machine can be reached; the first result says so. Such kernels are not adopted: they end about
a minute after their owner. Kernels of the image's other languages and of other programs (JupyterLab) are refused there,
with the reason.

In an image without Python, code and commands run all the same: a Python from `kernelexec/minimal` is mounted at
`/opt/kernelexec/rt`, and the first result says so; commands see the image as it is. The volume `kernelexec-runtime-...`
that holds it is shared and stays; `docker volume ls --filter label=kernelexec.runtime` lists it. Other languages'
kernels are those of the image, each in a container of its own.

**A server in a container itself** starts kernels beside it if it has the engine's socket, and its workspace, its
package and a directory for sockets (`XDG_RUNTIME_DIR`) at the same paths as the machine: `docker run -v
/var/run/docker.sock:/var/run/docker.sock -v /srv/agents:/srv/agents -e XDG_RUNTIME_DIR=/srv/agents/run -e
KERNELEXEC_FORCE_CONTAINER=1 ...`. Whoever has that socket is root on the machine: the server, never a kernel.
"""
