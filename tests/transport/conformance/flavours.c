/* flavours.c - see flavours.h. */
#include "tests/transport/conformance/flavours.h"

#include <stdio.h>
#include <string.h>

#include "transport/transport.h"

enum { WINDOWS = WEFT_TRANSPORT_WINDOWS, MAPS = WEFT_TRANSPORT_MAPS };

static const struct flavour flavours[] = {
    {"sim", "sim", .must = WINDOWS, .many = 1000},
    {"lossy-sim", "sim", .must = WINDOWS, .many = 40, .lossy = true},
    {"fault-sim", "fault:sim", .may = WINDOWS, .many = 1000},
    {"delay-sim", "delay:sim", .wrap = "delay_us=30,jitter_us=20,rate_bytes=2000000000,seed=3",
     .may = WINDOWS, .many = 200},
    {"delay-fault-sim", "delay:fault:sim", .wrap = "delay_us=10", .may = WINDOWS, .many = 200},
    {"trace-sim", "trace:sim", .wrap = "file=/dev/null", .may = WINDOWS, .many = 40},
    {"fault-trace-delay-sim", "fault:trace:delay:sim", .wrap = ";trace:file=/dev/null;delay_us=10",
     .may = WINDOWS, .many = 40},
    {"shm", "shm", .memory = true, .must = WINDOWS | MAPS, .many = 100, .processes = true},
    {"shm-cma", "shm", .tune = "maps=off", .must = WINDOWS, .many = 8, .processes = true},
    {"shm-staged", "shm", .tune = "cma=off", .must = WINDOWS | MAPS, .many = 8, .processes = true},
    {"shm-granted", "shm", .tune = "cma=off", .memory = true, .must = WINDOWS | MAPS, .many = 8,
     .processes = true},
    {"shm-neither", "shm", .tune = "cma=off,maps=off", .must = WINDOWS, .many = 8, .processes = true},
    {"fault-shm", "fault:shm", .may = WINDOWS | MAPS, .many = 8, .processes = true},
    {"delay-shm", "delay:shm", .wrap = "delay_us=50,seed=3", .may = WINDOWS | MAPS, .many = 8},
    {"trace-shm", "trace:shm", .wrap = "file=/dev/null", .may = WINDOWS | MAPS, .many = 8},
    {"auto", "auto", "tcp", .memory = true, .must = WINDOWS | MAPS, .many = 32, .processes = true},
    {"auto-ucx", "auto", "tcp", .tune = "use=ucx", .may = WINDOWS, .many = 8, .processes = true,
     .networks = true},
    {"auto-mixed", "auto", "tcp", .tune = "use=shm+ucx", .odd_tune = "use=ucx", .may = WINDOWS | MAPS,
     .many = 32},
    {"fault-auto", "fault:auto", "tcp", .may = WINDOWS | MAPS, .many = 8},
    {"delay-auto", "delay:auto", "tcp", .wrap = "delay_us=50,seed=3", .may = WINDOWS | MAPS, .many = 8},
    {"trace-auto", "trace:auto", "tcp", .wrap = "file=/dev/null", .may = WINDOWS | MAPS, .many = 8,
     .processes = true},
    /* those with a device: in the virtual machine */
    {"verbs", "verbs", .must = WINDOWS, .many = 16, .processes = true, .networks = true, .machine = true},
    {"verbs-cm", "verbs", .tune = "connect=cm", .must = WINDOWS, .many = 8, .machine = true},
    {"verbs-lanes", "verbs", .tune = "lanes=4,chunk=16k,ring=16k,depth=16,budget=16k,inline=0,receives=64",
     .must = WINDOWS, .many = 8, .machine = true},
    {"auto-verbs", "auto", .tune = "use=shm+verbs", .odd_tune = "use=verbs", .memory = true,
     .may = WINDOWS | MAPS, .many = 8, .machine = true},
    {"fault-verbs", "fault:verbs", .may = WINDOWS, .many = 4, .machine = true},
    {"delay-verbs", "delay:verbs", .wrap = "delay_us=50,seed=3", .may = WINDOWS, .many = 4, .machine = true},
    {"trace-verbs", "trace:verbs", .wrap = "file=/dev/null", .may = WINDOWS, .many = 4, .machine = true},
    {"ucx-tcp", "ucx", "tcp", .may = WINDOWS, .many = 32, .processes = true, .networks = true},
    {"ucx-shm", "ucx", "shm", .may = WINDOWS, .many = 8, .processes = true},
    {"ucx-verbs", "ucx", "rc_verbs,ud_verbs", .may = WINDOWS, .many = 8, .machine = true},
    {"tcp", "tcp", .many = 32, .processes = true, .networks = true},
    {"tcp-tight", "tcp", .tune = "budget=64k", .many = 8, .processes = true},
    {"fault-tcp", "fault:tcp", .many = 8, .processes = true},
    {"delay-tcp", "delay:tcp", .wrap = "delay_us=50,seed=3", .many = 8},
    {"trace-tcp", "trace:tcp", .wrap = "file=/dev/null", .many = 8, .processes = true},
    {"fault-ucx", "fault:ucx", "tcp", .may = WINDOWS, .many = 8},
    {"delay-ucx", "delay:ucx", "tcp", .wrap = "delay_us=50,seed=3", .may = WINDOWS, .many = 8,
     .processes = true},
    {"trace-ucx", "trace:ucx", "tcp", .wrap = "file=/dev/null", .may = WINDOWS, .many = 8},
};

const struct flavour *flavour_find(const char *name)
{
    for (size_t i = 0; i < sizeof flavours / sizeof *flavours; i++)
        if (strcmp(flavours[i].name, name) == 0) return &flavours[i];
    return NULL;
}

const char *flavour_tune(const struct flavour *flavour, int index)
{
    return flavour->odd_tune && index % 2 == 1 ? flavour->odd_tune : flavour->tune;
}

void flavour_print_names(void)
{
    for (size_t i = 0; i < sizeof flavours / sizeof *flavours; i++) fprintf(stderr, " %s", flavours[i].name);
    fprintf(stderr, "\n");
}
