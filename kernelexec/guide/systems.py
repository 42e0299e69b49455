r"""Other systems than Linux.

## Other systems

Linux is what the tests run on; macOS and Windows were never run. What differs is decided in two modules,
`kernelexec/provisioning/platform.py` (this side) and `kernelexec/launcher/platform.py` (the kernel's process), field by
field in `System.of`; nothing else asks which system it is. As far as it can be told from Linux:

| | Linux | macOS | Windows |
| --- | --- | --- | --- |
| kernels on the machine are reached by | unix sockets, pinned by descriptors | CurveZMQ on 127.0.0.1 | the same |
| kernels are forked | yes | no: started one by one | no |
| a kernel's end is known | at once | within 0.05 s | within 0.05 s |
| what left the kernel's process group is swept | yes | no: a running command can outlive a kernel that is killed | no |
| confinement | Landlock, capabilities, network | none; `doctor` and the results say so, `required` refuses | none |
| every thread's stack in the result | yes | no | no |
| commands | bash or sh; `cd` and `export` last | the same | PowerShell or cmd; neither lasts. Not whole yet: commands' pipes are read by `select`, which takes sockets only there |
| a session's files, private directories | by descriptors | by descriptors | not yet: they need `O_NOFOLLOW`, `O_DIRECTORY` and `dir_fd`: use WSL |
"""
