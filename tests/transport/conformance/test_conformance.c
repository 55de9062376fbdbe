/* test_conformance.c - the suite over one flavour:
 *
 *     test_conformance [--flavour] NAME [--part NAME] [--test PATTERN] [--endpoints N]
 *
 * Default: the simulator. Exit status 77 (skipped): the flavour needs a device that is absent. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/transport/conformance/conformance.h"

const struct flavour *flavour;
int conformance_endpoints;

static const struct conformance_part *const parts[] = {
    &conformance_messages,    &conformance_receive,  &conformance_load,
    &conformance_ends,        &conformance_deadline, &conformance_many,
    &conformance_unconnected, &conformance_sleep,    &conformance_one_sided,
};

void on_arrival(void *context, struct weft_arrival *arrival)
{
    struct handled *handled = context;
    assert_false(op_inside_call);
    handled->count++;
    weft_list_append(&handled->held, &arrival->link);
}

/* The device that this flavour needs; false and a sentence: absent. */
static bool machine_has_it(void)
{
    struct weft_transport_options options;
    struct weft_transport *transport;
    struct weft_error error = {0};
    if (!flavour->machine) return true;
    weft_transport_options_init(&options);
    options.backend = flavour->backend;
    options.wrap = flavour->wrap;
    options.tune = flavour->odd_tune; /* of auto: the child that needs the device */
    if (flavour->lanes) options.lanes = flavour->lanes;
    if (net_devices(0)) options.devices = net_devices(0);
    options.id = 1;
    options.secret = "secret";
    options.secret_bytes = 6;
    enum weft_status status = weft_transport_open(weft_env_system(), &options, &transport, &error);
    if (status < 0) {
        fprintf(stderr, "skipped: %s: %s\n", flavour->name, error.text);
        return false;
    }
    weft_transport_close(transport);
    while (!weft_transport_drained(transport)) weft_transport_progress(transport, 64);
    weft_transport_free(transport);
    return true;
}

static int usage(const char *word)
{
    fprintf(stderr,
            "usage: test_conformance [--flavour] NAME [--part NAME] [--test PATTERN] [--endpoints N]; "
            "unknown: %s\nparts:",
            word);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) fprintf(stderr, " %s", parts[i]->name);
    fprintf(stderr, "\nflavours:");
    flavour_print_names();
    return 2;
}

int main(int argc, char **argv)
{
    const char *name = "sim", *part = NULL;
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "--flavour") == 0 && more) name = argv[++i];
        else if (strcmp(argv[i], "--part") == 0 && more) part = argv[++i];
        else if (strcmp(argv[i], "--test") == 0 && more) cmocka_set_test_filter(argv[++i]);
        else if (strcmp(argv[i], "--endpoints") == 0 && more) conformance_endpoints = atoi(argv[++i]);
        else if (argv[i][0] != '-') name = argv[i];
        else return usage(argv[i]);
    }
    flavour = flavour_find(name);
    if (!flavour) return usage(name);
    if (!machine_has_it()) return 77;
    int failed = 0, ran = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (part && strcmp(part, parts[i]->name) != 0) continue;
        char title[64];
        snprintf(title, sizeof title, "%s %s", flavour->name, parts[i]->name);
        /* Called by its internal name: the macro needs the array itself. */
        failed += _cmocka_run_group_tests(title, parts[i]->tests, parts[i]->count, NULL, NULL);
        ran++;
    }
    return ran == 0 ? usage(part) : failed > 0;
}
