/* separate_object.c - shared object for test_library.c, in two parts: the object, and (APART_BELOW) the
 * library that it links. */
#include <stdlib.h>
#include <string.h>

int apart_number(void);
int apart_ask(void);
int apart_copy(const char *text);
char **apart_environment(void);

extern char **environ;

#ifdef APART_BELOW
int apart_number(void)
{
    return 1;
}
#else
/* 1: from the library below; 2: from the program, which defines the function too */
int apart_ask(void)
{
    return apart_number();
}

char **apart_environment(void)
{
    return environ;
}

/* The C library allocates, this object frees. */
int apart_copy(const char *text)
{
    char *copy = strdup(text);
    const int same = copy && strcmp(copy, text) == 0;
    free(copy);
    return same;
}
#endif
