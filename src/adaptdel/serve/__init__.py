"""Models over HTTP: the application behind ``adaptdel serve``. It needs the extra ``serve``."""

try:
    from adaptdel.serve.app import create_app as create_app
    from adaptdel.serve.service import ModelToServe as ModelToServe
    from adaptdel.serve.service import Service as Service
except ModuleNotFoundError as error:
    raise ImportError(f"a server needs {error.name}: pip install 'adaptdel[serve]'") from None
from adaptdel.settings import ServeSettings as ServeSettings
