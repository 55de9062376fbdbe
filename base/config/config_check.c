/* config_check.c - see config_check.h. */
#include "base/config/config_check.h"

struct dependency {
    const char *option, *needs;
    const char *instead; /* option that also satisfies the dependency; NULL: none */
    const char *refusal; /* error text; NULL: a warning, because the option has no effect */
    bool coordinator;    /* only the coordinating process uses the option */
};

/* server.hash_every is absent: without copies it is the period of the weight hash of codecs.
 * An option with its default value has no dependency. A dependency is satisfied if `needs` is not its
 * default. */
static const struct dependency dependencies[] = {
    {"server.store", "server.copies", NULL,
     "server.store needs server.copies=1: the shard of a lost coordinator is lost, too", true},
    {"server.rollback", "snapshot.folder", "snapshot.restore", NULL, true},
    {"server.copies_on_one_host", "server.copies", NULL, NULL, true},
    {"server.copy_bytes", "server.copies", NULL, NULL, true},
    {"server.move_rate", "server.copies", NULL, NULL, true},
    {"snapshot.every", "snapshot.folder", NULL, NULL, false},
    {"snapshot.keep", "snapshot.folder", NULL, NULL, false},
    {"snapshot.weights", "snapshot.folder", NULL, NULL, false},
    {"snapshot.memory_bytes", "snapshot.folder", NULL, NULL, false},
    {"snapshot.hook", "snapshot.folder", "snapshot.restore", NULL, false},
    {"snapshot.hook_keep", "snapshot.hook", NULL, NULL, false},
    {"collective.plans", "collective.retune", NULL, NULL, false},
};

enum weft_status weft_config_check(const struct weft_config *config, bool coordinates,
                                   void (*warn)(void *context, const char *text), void *context,
                                   struct weft_error *error)
{
    if (coordinates && !weft_config_is_default(config, "server.store") &&
        weft_config_u64(config, "server.resume") == 0)
        return weft_error_set(error, WEFT_ERR_INVALID, "server.store needs server.resume above 0");
    for (size_t i = 0; i < sizeof dependencies / sizeof dependencies[0]; i++) {
        const struct dependency *row = &dependencies[i];
        char text[160];
        if ((row->coordinator && !coordinates) || weft_config_is_default(config, row->option) ||
            !weft_config_is_default(config, row->needs) ||
            (row->instead && !weft_config_is_default(config, row->instead)))
            continue;
        if (row->refusal) return weft_error_set(error, WEFT_ERR_INVALID, "%s", row->refusal);
        snprintf(text, sizeof text, "%s has no effect without %s%s%s", row->option, row->needs,
                 row->instead ? " or " : "", row->instead ? row->instead : "");
        if (warn) warn(context, text);
    }
    return WEFT_OK;
}
