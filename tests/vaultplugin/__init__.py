"""A vault plugin's REST API over a plain folder, as far as its clients use it, in the versions that are in the field.

Written after the plugin's documented behaviour, with nothing of the code that it judges.
"""
