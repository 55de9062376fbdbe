/* target.c - see target.h. */
#include "tools/target.h"

#include <stdlib.h>

#include "tools/common.h"

void tool_target_init(struct tool_target *target)
{
    const char *job = getenv("WEFT_JOB");
    *target = (struct tool_target){.address = getenv("WEFT_COORDINATOR"), .seconds = 5};
    weft_control_client_options_init(&target->options);
    if (job && job[0]) target->options.job = job;
}

int tool_target_resolve(const char *command, struct tool_target *target, int argc, char **argv, int first)
{
    struct weft_error error = {0};
    if (first < argc) target->address = argv[first++];
    if (first < argc)
        return tool_usage_error(command, "unexpected argument '%s': give one HOST:PORT", argv[first]);
    if (!target->address || !target->address[0])
        return tool_usage_error(command, "HOST:PORT of the coordinator is missing");
    if (weft_host_port_parse(target->address, target->host, &target->options.port, &error) != WEFT_OK)
        return tool_usage_error(command, "%s", error.text);
    if (!tool_read_secret(command, target->secret_file, NULL, &target->secret)) return 1;
    target->options.host = target->host;
    target->options.secret = target->secret;
    target->options.join_ns = WEFT_SECONDS(target->seconds);
    return -1;
}

void tool_target_free(struct tool_target *target)
{
    free(target->secret);
    target->secret = NULL;
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
