/* log_repeats.c - see log_repeats.h. */
#include "base/log/log_repeats.h"

#include <stdio.h>
#include <string.h>

#include "base/fnv.h"

static uint64_t hash_of(enum weft_log_level level, const char *module, const char *text)
{
    uint64_t hash = weft_fnv(WEFT_FNV_BASIS, (uint64_t)level);
    hash = weft_fnv_bytes(hash, module, strlen(module) + 1);
    hash = weft_fnv_bytes(hash, text, strlen(text));
    return hash ? hash : 1;
}

static void end_window(struct weft_log_repeat *entry, weft_log_repeats_write *write, void *context)
{
    char text[sizeof entry->text + 64];
    if (entry->hash && entry->hidden > 0) {
        snprintf(text, sizeof text, "repeated %u times in %.1f s: %s", entry->hidden,
                 (double)weft_elapsed_ns(entry->first_ns, entry->last_ns) / 1e9, entry->text);
        write(context, entry->level, entry->module, text);
    }
    entry->hash = 0;
}

/* The entry of the line, or else a free one, or else the oldest. */
static struct weft_log_repeat *find(struct weft_log_repeats *repeats, uint64_t hash)
{
    struct weft_log_repeat *found = &repeats->entries[0];
    for (uint32_t i = 0; i < WEFT_LOG_REPEATS; i++) {
        struct weft_log_repeat *entry = &repeats->entries[i];
        if (entry->hash == hash) return entry;
        if (found->hash && (!entry->hash || entry->first_ns < found->first_ns)) found = entry;
    }
    return found;
}

bool weft_log_repeats_add(struct weft_log_repeats *repeats, uint64_t now_ns, enum weft_log_level level,
                          const char *module, const char *text, weft_log_repeats_write *write, void *context)
{
    const uint64_t hash = hash_of(level, module, text);
    for (uint32_t i = 0; i < WEFT_LOG_REPEATS; i++)
        if (repeats->entries[i].hash &&
            weft_elapsed_ns(repeats->entries[i].first_ns, now_ns) >= WEFT_LOG_WINDOW_NS)
            end_window(&repeats->entries[i], write, context);
    struct weft_log_repeat *entry = find(repeats, hash);
    if (entry->hash != hash) {
        end_window(entry, write, context);
        *entry = (struct weft_log_repeat){.hash = hash, .first_ns = now_ns, .level = level};
        snprintf(entry->module, sizeof entry->module, "%s", module);
        snprintf(entry->text, sizeof entry->text, "%s", text);
    }
    entry->last_ns = now_ns;
    if (entry->shown < WEFT_LOG_SHOWN) {
        entry->shown++;
        return true;
    }
    entry->hidden++;
    return false;
}

void weft_log_repeats_flush(struct weft_log_repeats *repeats, weft_log_repeats_write *write, void *context)
{
    for (uint32_t i = 0; i < WEFT_LOG_REPEATS; i++) end_window(&repeats->entries[i], write, context);
}
