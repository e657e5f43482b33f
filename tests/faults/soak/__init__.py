"""`make soak`: an installation under load, a nemesis that breaks it at random, and a checker at the end."""
