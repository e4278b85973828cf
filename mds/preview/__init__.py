"""Values as people look at them: in words, as pictures in a terminal, and on a page of HTML."""
