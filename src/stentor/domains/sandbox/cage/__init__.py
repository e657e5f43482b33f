"""The cage: a program without network, without the host's files and without privileges, ended as a whole."""
