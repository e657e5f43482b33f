"""A stub of the vault plugin's REST API over a plain folder, in the versions that users have installed.

It supports what the clients of Stentor use, and follows the plugin's documentation; it imports no product code.
"""
