from worker.errors import Problem
def translate(environ):
    return {}, [], []
