"""Uploads of reports and records, and the open rounds that devices fetch.

Request bodies enter in one of several formats. Validated reports leave to the report log by group commit, and scaled,
encrypted records to the records tables. Labels of stored reports are computed here too.
"""
