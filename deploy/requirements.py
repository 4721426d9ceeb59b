"""The dependencies of pyproject.toml as pip's requirements, with those of the extras named: `requirements.py s3`."""

import sys
import tomllib

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
extras = project["optional-dependencies"]
for line in [*project["dependencies"], *(one for name in sys.argv[1:] for one in extras[name])]:
    print(line)
