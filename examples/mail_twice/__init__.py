"""The mail that was sent twice: one program, one kill, four ways to run it."""
