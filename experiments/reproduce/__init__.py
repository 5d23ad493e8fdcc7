"""The framework that regenerates tables and figures of publications: `silvan reproduce`, see README.md."""
