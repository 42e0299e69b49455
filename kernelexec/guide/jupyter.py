r"""Container kernels for JupyterLab, nbclient and papermill.

## JupyterLab, nbclient, papermill

```console
kernelexec kernelspec install --memory 2g     # in the environment that Jupyter runs in
```

Then choose "Python (container)": every notebook gets a container of its own, with no network, nothing of the server's
environment, and of your files the notebook's directory only. Restart, interrupt and `input()` work as ever, `papermill
book.ipynb out.ipynb -k kernelexec` too, and when the server ends, killed or not, its kernels end. A notebook that lies
in your home directory itself is refused, since its code would see all your files (`--share-home` allows it). A running
agent's kernel is attached to with `jupyter console --existing FILE`; `kernelexec sessions` names the file.
"""
