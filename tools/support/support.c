/* support.c - `weft support`: one file with what a maintainer needs to examine a job, without secrets.
 *
 *     versions, configuration, environment, status, doctor -> texts \
 *     --logs DIR: *.log, *.json (flight records)          -> files -> bundle (removes secrets) -> tar.gz
 *
 * A part that cannot be read is a sentence in the file of that name: the other parts follow. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "proto/proto.h"
#include "tools/cli.h"
#include "tools/commands.h"
#include "tools/common.h"
#include "tools/support/bundle.h"
#include "tools/target.h"
#include "tools/top/top.h"

#define LOG_BYTES_MAX ((size_t)4 << 20)   /* the last bytes of a log */
#define JSON_BYTES_MAX ((size_t)64 << 20) /* flight records are useless when cut */
#define FILES_MAX 500u
#define DOCTOR_SECONDS 60u

extern char **environ;

struct support {
    struct bundle bundle;
    struct tool_target target;
    const char *logs, *output;
    bool without_doctor;
};

static void add_text(struct support *support, const char *name, const char *text)
{
    if (!bundle_add(&support->bundle, name, text, strlen(text), JSON_BYTES_MAX))
        fprintf(stderr, "weft support: cannot write %s: %s\n", name, strerror(errno));
}

/* ---- secrets ---- */

/* The secret, and the token for HTTP that is made from it. */
static void add_secret(struct support *support, const char *secret)
{
    char token[WEFT_HTTP_TOKEN_BYTES];
    bundle_add_secret(&support->bundle, secret);
    if (secret && weft_http_token(secret, token) == WEFT_OK) bundle_add_secret(&support->bundle, token);
}

/* Also of a file that weft_secret_file_read would refuse. */
static void add_secret_file(struct support *support, const char *path)
{
    char secret[WEFT_SECRET_BYTES_MAX + 1];
    FILE *file = path && path[0] ? fopen(path, "re") : NULL;
    if (!file) return;
    size_t bytes = fread(secret, 1, sizeof secret - 1, file);
    fclose(file);
    while (bytes > 0 && strchr(" \t\r\n", secret[bytes - 1])) bytes--;
    secret[bytes] = 0;
    add_secret(support, secret);
}

static void add_secrets(struct support *support, const struct weft_config *config)
{
    add_secret(support, support->target.secret);
    add_secret(support, getenv("WEFT_SECRET"));
    add_secret_file(support, support->target.secret_file);
    add_secret_file(support, getenv("WEFT_SECRET_FILE"));
    if (config) add_secret_file(support, weft_config_text(config, "job.secret_file"));
}

/* ---- parts ---- */

static void add_versions(struct support *support)
{
    char text[2048], line[256];
    struct utsname system;
    if (uname(&system) != 0) memset(&system, 0, sizeof system);
    size_t used =
        (size_t)snprintf(text, sizeof text, "weft %s, wire version %d\n%s %s %s %s\n", weft_proto_release(),
                         WEFT_WIRE_VERSION, system.sysname, system.release, system.version, system.machine);
    FILE *file = fopen("/etc/os-release", "re");
    while (file && fgets(line, sizeof line, file) && used + sizeof line < sizeof text)
        if (strncmp(line, "PRETTY_NAME=", 12) == 0)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s", line + 12);
    if (file) fclose(file);
    add_text(support, "versions.txt", text);
}

static void add_config(struct support *support, const struct weft_config *config,
                       const struct weft_error *error)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) return;
    if (config) weft_config_print(config, out);
    else fprintf(out, "The configuration is not valid: %s\n", error->text);
    fclose(out);
    add_text(support, "configuration.txt", text);
    free(text);
}

/* Variables of weft and UCX. The value of WEFT_SECRET is removed like that of every WEFT_SECRET=. */
static void add_environment(struct support *support)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) return;
    for (char **entry = environ; *entry; entry++)
        if (strncmp(*entry, "WEFT_", 5) == 0 || strncmp(*entry, "UCX_", 4) == 0) fprintf(out, "%s\n", *entry);
    fclose(out);
    add_text(support, "environment.txt", text);
    free(text);
}

/* Figures of the job and its workers, with the names of /metrics. */
static void add_metrics(struct support *support, const char *json)
{
    char *text = NULL;
    size_t bytes;
    json_t *status = json_loads(json, 0, NULL);
    FILE *out = status ? open_memstream(&text, &bytes) : NULL;
    if (out) top_print_metrics(out, status);
    if (out && fclose(out) == 0) add_text(support, "metrics.txt", text);
    free(text);
    json_decref(status);
}

static void add_status(struct support *support)
{
    struct weft_error error = {0};
    if (!support->target.host[0]) {
        add_text(support, "status.txt",
                 "No coordinator was given: neither HOST:PORT nor WEFT_COORDINATOR.\n");
        return;
    }
    char *json = tool_target_status(&support->target, &error);
    add_text(support, json ? "status.json" : "status.txt", json ? json : error.text);
    if (!json) fprintf(stderr, "weft support: the status of the job is left out: %s\n", error.text);
    if (json) add_metrics(support, json);
    free(json);
}

static void add_doctor(struct support *support)
{
    const char *const words[] = {"/proc/self/exe", "doctor", NULL};
    if (support->without_doctor) return;
    if (!bundle_add_output(&support->bundle, "doctor.txt", words, DOCTOR_SECONDS))
        fprintf(stderr, "weft support: cannot run weft doctor: %s\n", strerror(errno));
}

static bool has_ending(const char *name, const char *ending)
{
    const size_t bytes = strlen(name), ending_bytes = strlen(ending);
    return bytes > ending_bytes && strcmp(name + bytes - ending_bytes, ending) == 0;
}

/* Logs and flight records of a folder. false: it cannot be read; the sentence is on stderr. */
static bool add_logs(struct support *support)
{
    char path[4096], name[300];
    unsigned count = 0;
    if (!support->logs || !support->logs[0]) return true;
    DIR *folder = opendir(support->logs);
    if (!folder) {
        fprintf(stderr, "weft support: cannot read the folder %s: %s\n", support->logs, strerror(errno));
        return false;
    }
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL && count < FILES_MAX;) {
        const bool is_json = has_ending(entry->d_name, ".json");
        if (!is_json && !has_ending(entry->d_name, ".log")) continue;
        snprintf(path, sizeof path, "%s/%s", support->logs, entry->d_name);
        snprintf(name, sizeof name, "logs-%.255s", entry->d_name);
        if (bundle_add_file(&support->bundle, name, path, is_json ? JSON_BYTES_MAX : LOG_BYTES_MAX)) count++;
        else fprintf(stderr, "weft support: %s is left out: %s\n", path, strerror(errno));
    }
    closedir(folder);
    return true;
}

/* ---- the command ---- */

static void default_output(char *out, size_t bytes)
{
    const time_t now = time(NULL);
    struct tm parts;
    char day[32];
    localtime_r(&now, &parts);
    strftime(day, sizeof day, "%Y%m%d-%H%M%S", &parts);
    snprintf(out, bytes, "weft-support-%s.tar.gz", day);
}

static int make_bundle(struct support *support)
{
    struct weft_config *config = NULL;
    struct weft_error error = {0};
    char output[64];
    default_output(output, sizeof output);
    if (!support->output) support->output = output;
    if (!bundle_open(&support->bundle)) {
        fprintf(stderr, "weft support: no folder for temporary files: %s; set TMPDIR\n", strerror(errno));
        bundle_close(&support->bundle);
        return 1;
    }
    if (weft_config_load(weft_env_system(), &config, &error) != WEFT_OK) {
        weft_config_free(config);
        config = NULL;
    }
    add_secrets(support, config); /* before any part */
    add_versions(support);
    add_config(support, config, &error);
    add_environment(support);
    add_status(support);
    add_doctor(support);
    const bool made = add_logs(support) && bundle_pack(&support->bundle, support->output);
    if (made) printf("%s\n", support->output);
    bundle_close(&support->bundle);
    weft_config_free(config);
    return made ? 0 : 1;
}

int weft_support_main(int argc, char **argv)
{
    struct support support = {.logs = getenv("WEFT_RECORDER_DIRECTORY")};
    int first;
    tool_target_init(&support.target);
    const struct cli_option table[] = {
        TOOL_TARGET_OPTIONS(&support.target),
        {"logs", 'l', "DIR", "folder of logs and flight records (*.log, *.json)", "WEFT_RECORDER_DIRECTORY",
         CLI_TEXT(&support.logs)},
        {"output", 'o', "FILE", "file to write", "weft-support-TIME.tar.gz", CLI_TEXT(&support.output)},
        {"no-doctor", 0, NULL, "without the tries of weft doctor, which last up to a minute",
         CLI_FLAG(&support.without_doctor)},
    };
    const struct cli_command command = {
        "weft support",
        "weft support [options] [HOST:PORT]",
        "Writes one file for a report of a problem: versions, configuration, environment, weft doctor, logs, "
        "flight\n"
        "records, and the status of the job at HOST:PORT (default WEFT_COORDINATOR), if it runs.\n",
        CLI_TABLE(table),
        .notes =
            "The secret of the job is removed from every file. Host names, addresses and tensor names stay.\n"
            "Exit status: 0 if the file was written.\n",
        .takes_arguments = true};
    int status = cli_parse(&command, argc, argv, &first);
    const bool has_target = first < argc || (support.target.address && support.target.address[0]);
    if (status < 0 && has_target)
        status = tool_target_resolve("weft support", &support.target, argc, argv, first);
    if (status < 0) status = make_bundle(&support);
    tool_target_free(&support.target);
    return status;
}
