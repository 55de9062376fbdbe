/* library.c - opens shared objects with separate symbols.
 *
 * RTLD_LOCAL hides the object's symbols from the program, RTLD_DEEPBIND the program's symbols from the
 * object. With RTLD_DEEPBIND the object calls the C library's free() even if the program has its own malloc.
 * Memory that the C library allocates for its caller (strdup, getline) would then be freed by another
 * allocator. The flag is therefore not used in such programs. Sanitizers replace malloc too, and reject the
 * flag. */
#include "base/os/library.h"

#include <dlfcn.h>
#include <elf.h>
#include <gnu/lib-names.h>
#include <gnu/libc-version.h>
#include <limits.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

/* Is this function of the C library defined by another object? */
static bool is_replaced(const char *function)
{
    Dl_info libc, found;
    const ElfW(Sym) *symbol = NULL;
    void *address = dlsym(RTLD_DEFAULT, function);
    if (!address || !dladdr((void *)(uintptr_t)&gnu_get_libc_version, &libc)) return false;
    if (!dladdr1(address, &found, (void **)&symbol, RTLD_DL_SYMENT) || found.dli_fbase == libc.dli_fbase)
        return false;
    /* A program at a fixed address has undefined entries for functions that it only calls. */
    return !symbol || symbol->st_shndx != SHN_UNDEF;
}

/* Several names, because the entry of a program at a fixed address hides the definition behind it. */
static bool malloc_is_replaced(void)
{
    return is_replaced("malloc") || is_replaced("posix_memalign") || is_replaced("malloc_usable_size");
}

void *weft_library_open(const char *path)
{
    int flags = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
#ifdef RTLD_DEEPBIND
    if (!malloc_is_replaced()) flags |= RTLD_DEEPBIND;
    weft_environment(); /* constructors may read it */
#endif
    return dlopen(path, flags);
}

bool weft_library_folder(const void *address, char *out, size_t bytes)
{
    char path[PATH_MAX];
    Dl_info own;
    struct link_map *object = NULL;
    if (!dladdr1(address, &own, (void **)&object, RTLD_DL_LINKMAP) || !object) return false;
    /* the program has an empty name here */
    if (!realpath(object->l_name[0] ? object->l_name : "/proc/self/exe", path)) return false;
    const char *slash = strrchr(path, '/');
    if (!slash || (size_t)(slash - path) >= bytes) return false;
    memcpy(out, path, (size_t)(slash - path));
    out[slash - path] = 0;
    return true;
}

char **weft_environment(void)
{
    /* of the program: RTLD_DEFAULT of a library that was opened with RTLD_DEEPBIND is the C library's */
    void *program = dlopen(NULL, RTLD_LAZY);
    char ***programs = program ? dlsym(program, "environ") : NULL;
    void *libc = dlopen(LIBC_SO, RTLD_LAZY | RTLD_NOLOAD);
    char ***spare = libc ? dlsym(libc, "environ") : NULL;
    if (spare && programs && spare != programs) *spare = *programs;
    if (libc) dlclose(libc);
    if (program) dlclose(program);
    return programs ? *programs : environ;
}
