"""The `quire` command; here, and only here, processes are put together.

`main` is the entry point and finds the subcommands, one file per noun. `assemble` joins a broker, a bookie, a metadata
store and an archive into one process. `output` prints tables or JSON and turns errors into one sentence and an
exit code; `http` asks a broker's REST interface.
"""
