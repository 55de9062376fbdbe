/* flavours.h - the backends and wrappers that the suites of this folder run on: one row in flavours.c
 * each. */
#ifndef WEFT_TESTS_TRANSPORT_FLAVOURS_H
#define WEFT_TESTS_TRANSPORT_FLAVOURS_H

#include <stdbool.h>
#include <stddef.h>

struct flavour {
    const char *name;
    const char *backend; /* as in the options */
    const char *lanes;
    const char *wrap;
    const char *tune;
    bool memory;   /* payloads in memory of weft_memory_alloc */
    bool lossy;    /* sim: all hosts behind a switch that loses, duplicates and delays */
    unsigned must; /* enum weft_transport_abilities that it must have */
    unsigned may;  /* and those that it may have; no others */
    int many;      /* endpoints of the test `many`, in the quick suite */
    bool processes; /* endpoints may be in several processes: test_death, test_processes */
    bool networks;  /* ... and on several hosts */
    bool machine;   /* needs a device; the suite is skipped without it */
    const char *odd_tune; /* replaces tune for every second endpoint */
};

const struct flavour *flavour_find(const char *name); /* NULL: none of this name */
const char *flavour_tune(const struct flavour *flavour, int index); /* of the endpoint with this number */
void flavour_print_names(void);                       /* to stderr */

#endif
