/* target.c - see target.h. */
#include "tools/target.h"

#include <stdlib.h>
#include <string.h>

#include "tools/common.h"

void tool_target_init(struct tool_target *target)
{
    const char *job = getenv("WEFT_JOB");
    *target = (struct tool_target){.address = getenv("WEFT_COORDINATOR"), .seconds = 5};
    weft_control_client_options_init(&target->options);
    if (job && job[0]) target->options.job = job;
}

/* NULL: none. A file of options that cannot be read is reported by the command that needs one. */
static char *read_store(void)
{
    struct weft_config *config = NULL;
    if (weft_config_load(weft_env_system(), &config, NULL) < 0) return NULL;
    const char *path = weft_config_text(config, "server.store");
    char *store = path[0] ? strdup(path) : NULL;
    weft_config_free(config);
    return store;
}

static enum weft_status find_coordinator(struct tool_target *target, struct weft_error *error)
{
    char found[256];
    const bool is_given = target->address && target->address[0];
    if (!is_given)
        WEFT_TRY(weft_takeover_address(weft_env_system(), target->store, target->options.job, found, error));
    return weft_host_port_parse(is_given ? target->address : found, target->host, &target->options.port,
                                error);
}

int tool_target_resolve(const char *command, struct tool_target *target, int argc, char **argv, int first)
{
    struct weft_error error = {0};
    if (first < argc) target->address = argv[first++];
    if (first < argc)
        return tool_usage_error(command, "unexpected argument '%s': give one HOST:PORT", argv[first]);
    target->store = read_store();
    if ((!target->address || !target->address[0]) && !target->store)
        return tool_usage_error(command, "HOST:PORT of the coordinator is missing");
    if (find_coordinator(target, &error) < 0) return tool_usage_error(command, "%s", error.text);
    if (!tool_read_secret(command, target->secret_file, NULL, &target->secret)) return 1;
    target->options.host = target->host;
    target->options.secret = target->secret;
    target->options.join_ns = WEFT_SECONDS(target->seconds);
    return -1;
}

void tool_target_free(struct tool_target *target)
{
    free(target->secret);
    free(target->store);
    target->secret = target->store = NULL;
}

const char *tool_json_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "?";
}

long long tool_json_number(const json_t *object, const char *key)
{
    return (long long)json_integer_value(json_object_get(object, key));
}
