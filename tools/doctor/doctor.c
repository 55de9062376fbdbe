/* doctor.c - `weft doctor`: finds out which transports work, why others do not, and what to do about it.
 *
 *   weft doctor                       this host: its files, and tries of all transports between two processes
 *   weft doctor --listen              serve the doctor of another host
 *   weft doctor HOST[:PORT] ...       also tries of all transports to those hosts
 *
 * Latency and bandwidth go into the link table, which is kept in a file. No setting of any machine
 * changes. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/bench/lib/table.h"
#include "tools/bench/p2p/options.h"
#include "tools/cli.h"
#include "tools/commands.h"
#include "tools/common.h"
#include "tools/doctor/machine.h"
#include "tools/doctor/notify.h"
#include "tools/doctor/rdma_port.h"
#include "tools/doctor/remote.h"
#include "tools/gpu/health.h"

enum {
    LANES_MAX = 16,
    TARGETS_MAX = 64,
    CLOCK_WARN_MS = 1000,
    EXIT_FINE = 0,
    EXIT_WARN = 1,
    EXIT_BROKEN = 3
};

struct doctor {
    char lanes[LANES_MAX][DOCTOR_LANE_MAX];
    size_t lane_count;
    bool asked; /* --transport was given: each of the lanes must work */
    const char *devices, *root, *cache_path, *secret_path, *coordinator;
    char default_cache[512];
    char default_folder[400]; /* made for the file, with its subfolder `weft` */
    char *secret;
    bool json, all, no_cache, links_only, no_tries, gpu_metrics;
    uint32_t deadline_s;
    struct doctor_report report;
    struct weft_link_table *table;
    uint32_t self; /* index of this host in the table */
    bool rdma_needed;
    size_t own_count; /* findings of this host's files */
    bool verbs_works; /* to the host that is being tried */
};

/* ---- the link table and its file ---- */

static bool default_cache(struct doctor *doctor)
{
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char *folder = doctor->default_folder;
    const size_t bytes = sizeof doctor->default_folder;
    int used;
    if (base && base[0] == '/') used = snprintf(folder, bytes, "%s", base);
    else if (home && home[0] == '/') used = snprintf(folder, bytes, "%s/.cache", home);
    else return false;
    if (used >= (int)bytes) return false;
    snprintf(doctor->default_cache, sizeof doctor->default_cache, "%s/weft/links", folder);
    return true;
}

static void make_default_folder(const struct doctor *doctor)
{
    char folder[sizeof doctor->default_folder + 8];
    snprintf(folder, sizeof folder, "%s/weft", doctor->default_folder);
    mkdir(doctor->default_folder, 0700);
    mkdir(folder, 0700);
}

static bool open_table(struct doctor *doctor)
{
    struct weft_env *env = weft_env_system();
    struct weft_error error = {0};
    char name[WEFT_LINK_NAME_BYTES] = "";
    if (!doctor->cache_path && !doctor->no_cache && default_cache(doctor))
        doctor->cache_path = doctor->default_cache;
    if (doctor->no_cache) doctor->cache_path = NULL;
    enum weft_status status = doctor->cache_path
                                  ? weft_link_table_load(env, doctor->cache_path, &doctor->table, &error)
                                  : WEFT_ERR_NOT_FOUND;
    if (status < 0 && status != WEFT_ERR_NOT_FOUND)
        fprintf(stderr, "weft doctor: %s; it is made anew\n", error.text);
    if (status < 0) status = weft_link_table_create(env, &doctor->table);
    if (gethostname(name, sizeof name - 1) != 0 || !name[0]) snprintf(name, sizeof name, "localhost");
    if (status >= 0)
        status = weft_link_table_host(doctor->table, name, weft_host_fingerprint("/"), &doctor->self);
    if (status < 0) fprintf(stderr, "weft doctor: no link table: %s\n", weft_reason_text(status));
    return status >= 0;
}

static void save_table(struct doctor *doctor)
{
    struct weft_error error = {0};
    if (!doctor->cache_path) return;
    if (doctor->cache_path == doctor->default_cache) make_default_folder(doctor);
    if (weft_link_table_save(doctor->table, doctor->cache_path, &error) < 0)
        fprintf(stderr, "weft doctor: %s\n", error.text);
}

static void print_links(const struct doctor *doctor, FILE *out)
{
    static const struct bench_column columns[] = {{"from", "", true},
                                                  {"to", "", true},
                                                  {"transport", "", true},
                                                  {"latency", "(us)", false},
                                                  {"bandwidth", "(GB/s)", false},
                                                  {"transport, or the reason", "", true}};
    struct bench_table table;
    bench_table_init(&table, columns, 6);
    for (uint32_t i = 0; i < weft_link_table_count(doctor->table); i++) {
        const struct weft_link *link = weft_link_table_get(doctor->table, i);
        bool works = link->state == WEFT_LINK_WORKS;
        bench_table_row(&table);
        bench_table_cell(&table, 0, "%s", weft_link_table_host_name(doctor->table, link->from));
        bench_table_cell(&table, 1, "%s", weft_link_table_host_name(doctor->table, link->to));
        bench_table_cell(&table, 2, "%s", link->lane);
        bench_table_cell(&table, 3, works ? "%.2f" : "-", 1e-3 * (double)link->latency_ns);
        bench_table_cell(&table, 4, works ? "%.3f" : "-", 1e-9 * (double)link->bytes_per_second);
        bench_table_cell(&table, 5, "%s", link->text);
    }
    bench_table_print(&table, out, "#");
    bench_table_free(&table);
}

static void set_link(struct doctor *doctor, uint32_t from, uint32_t to, const char *lane,
                     const struct doctor_try_result *result, uint64_t rate)
{
    struct weft_link link = {.from = from,
                             .to = to,
                             .state = result->status < 0 ? WEFT_LINK_FAILED : WEFT_LINK_WORKS,
                             .latency_ns = result->latency_ns,
                             .bytes_per_second = rate};
    snprintf(link.lane, sizeof link.lane, "%s", lane);
    snprintf(link.text, sizeof link.text, "%.*s", (int)sizeof link.text - 1, result->text);
    weft_link_table_set(doctor->table, &link);
}

/* ---- tries ---- */

/* Reports the transport that a job would use. It warns if a lane works that the devices of the job do not
 * lead to. */
static void report_auto(struct doctor *doctor, const char *subject, const char *description,
                        const char *devices)
{
    const char *reasons = strstr(description, " (not ");
    int length = reasons ? (int)(reasons - description) : (int)strlen(description);
    bool verbs = strncmp(description, "verbs", 5) == 0, shm = strncmp(description, "shm", 3) == 0;
    bool better = doctor->verbs_works && !verbs && !shm;
    doctor_add_finding(&doctor->report, better ? DOCTOR_WARN : DOCTOR_NOTE, "auto", subject,
                       better ? "name the RDMA device as well (transport.devices=mlx5_0:1,eth0)"
                              : "nothing; transport.backend and transport.devices choose otherwise",
                       "a job uses %.*s (transport.backend=auto, transport.devices=%s)%s", length,
                       description, devices ? devices : "lo", better ? ", though verbs works there" : "");
}

/* Reports the try of one lane to one host. Returns whether the lane works. */
static bool report_try(struct doctor *doctor, const char *subject, const char *lane, const char *devices,
                       const struct doctor_try_result *result)
{
    if (result->status >= 0) {
        if (strncmp(lane, "verbs", 5) == 0) doctor->verbs_works = true;
        if (strcmp(lane, "auto") == 0) report_auto(doctor, subject, result->text, devices);
        doctor_add_finding(&doctor->report, DOCTOR_OK, "transport", subject, NULL,
                           "%s works: %.2f us, %.2f GB/s out, %.2f GB/s in", lane,
                           1e-3 * (double)result->latency_ns, 1e-9 * (double)result->out_bytes_per_second,
                           1e-9 * (double)result->in_bytes_per_second);
        return true;
    }
    const struct doctor_finding *device = doctor_newest_finding(&doctor->report, "rdma-device");
    bool absent =
        result->absent || (strncmp(lane, "verbs", 5) == 0 && device && device->level == DOCTOR_NOTE);
    enum doctor_level level = doctor->asked ? DOCTOR_BROKEN : absent ? DOCTOR_NOTE : DOCTOR_WARN;
    const char *advice =
        absent
            ? "use another transport, or a build that has this one"
            : "the lines above about the machine; between hosts: open the ports, name the device (--devices)";
    doctor_add_finding(&doctor->report, level, "transport", subject, advice, "%s does not work: %s", lane,
                       result->text);
    return false;
}

static void report_host(struct doctor *doctor, const char *subject, size_t working)
{
    if (working > 0 || doctor->asked) return;
    doctor_add_finding(&doctor->report, DOCTOR_BROKEN, "no-transport", subject, "see the reasons above",
                       "no transport works");
}

static void report_cma(struct doctor *doctor)
{
    int error = doctor_check_cma();
    if (error == 0) {
        doctor_add_finding(&doctor->report, DOCTOR_OK, "cma", "this host", NULL,
                           "processes of this user read each other's memory (process_vm_readv)");
        return;
    }
    doctor_add_finding(
        &doctor->report, DOCTOR_WARN, "cma", "this host",
        "kernel.yama.ptrace_scope=0, in a container --cap-add=SYS_PTRACE; or take buffers from "
        "weft_alloc, which need none",
        "process_vm_readv between two processes of this user: %s; large messages from ordinary "
        "memory are copied twice",
        strerror(error));
}

static void try_on_host(struct doctor *doctor)
{
    size_t working = 0;
    doctor->verbs_works = false;
    for (size_t i = 0; i < doctor->lane_count; i++) {
        struct doctor_try_result result;
        doctor_try_on_host(doctor->lanes[i], doctor->devices, doctor->deadline_s, &result);
        set_link(doctor, doctor->self, doctor->self, doctor->lanes[i], &result, result.out_bytes_per_second);
        working += report_try(doctor, "this host", doctor->lanes[i], doctor->devices, &result);
    }
    report_host(doctor, "this host", working);
    report_cma(doctor);
}

static void report_clock(struct doctor *doctor, const char *target, int64_t offset_ns)
{
    bool apart = llabs((long long)offset_ns) / 1000000 > CLOCK_WARN_MS;
    doctor_add_finding(
        &doctor->report, apart ? DOCTOR_WARN : DOCTOR_OK, "clock-offset", target,
        apart
            ? "run chrony or systemd-timesyncd on both: certificates and the order of log lines depend on it"
            : NULL,
        "its clock is %+.3f s from ours", 1e-9 * (double)offset_ns);
}

/* Hosts with different MTUs drop or truncate packets above the smaller one. */
static void report_mtu(struct doctor *doctor, const char *target, const struct doctor_remote *remote)
{
    uint32_t least = remote->mtu < remote->remote_mtu ? remote->mtu : remote->remote_mtu;
    if (!remote->mtu || !remote->remote_mtu) return;
    bool differ = remote->mtu != remote->remote_mtu,
         narrow = !differ && remote->path_mtu > 0 && remote->path_mtu < least;
    const char *advice =
        differ   ? "the same MTU on both hosts and on the switches between them (9000 on fast Ethernet)"
        : narrow ? "raise the MTU of the routers, switches or tunnels between the hosts"
                 : NULL;
    doctor_add_finding(&doctor->report, advice ? DOCTOR_WARN : DOCTOR_OK, "path-mtu", target, advice,
                       "MTU %u on %s here, %u on %s there%s", remote->mtu, remote->devices,
                       remote->remote_mtu, remote->remote_device,
                       narrow ? ", but the path between has a smaller MTU" : "");
}

/* Adds the host to the table under its own name. If that is our name too (a namespace, a clone), the target
 * is the name. */
static bool add_remote(struct doctor *doctor, const struct doctor_remote *remote, const char *target,
                       uint32_t *index)
{
    char name[WEFT_LINK_NAME_BYTES], host[256], port[16];
    bool same = strcmp(remote->name, weft_link_table_host_name(doctor->table, doctor->self)) == 0;
    if (!doctor_parse_target(target, host, sizeof host, port, sizeof port)) return false;
    if (same && doctor_is_loopback(host)) {
        *index = doctor->self;
        return true;
    }
    snprintf(name, sizeof name, "%.*s", (int)sizeof name - 1, same || !remote->name[0] ? host : remote->name);
    return weft_link_table_host(doctor->table, name, remote->fingerprint, index) >= 0;
}

static void try_host(struct doctor *doctor, const char *target)
{
    struct doctor_remote remote;
    uint32_t index = 0;
    size_t working = 0;
    if (!doctor_connect(target, doctor->secret, doctor->deadline_s, &remote, &doctor->report)) return;
    report_clock(doctor, target, remote.clock_offset_ns);
    report_mtu(doctor, target, &remote);
    const size_t first = doctor->report.count;
    if (!doctor_remote_examine(&remote, target, doctor->rdma_needed, doctor->deadline_s, &doctor->report)) {
        doctor_add_finding(&doctor->report, DOCTOR_BROKEN, "reach", target,
                           "see the output of `weft doctor --listen` there", "the connection was lost");
        doctor_disconnect(&remote);
        return;
    }
    doctor_compare_hosts(&doctor->report, target, doctor->own_count, first);
    bool is_in_table = add_remote(doctor, &remote, target, &index);
    doctor->verbs_works = false;
    for (size_t i = 0; i < doctor->lane_count; i++) {
        struct doctor_try_result result;
        /* shared memory connects processes of one host only */
        bool one_host = strstr(doctor->lanes[i], "shm") != NULL;
        if (one_host && !doctor->asked && !remote.same_kernel) continue;
        bool is_connected = doctor_remote_try(&remote, doctor->lanes[i], doctor->devices, doctor->secret,
                                              doctor->deadline_s, &result);
        if (is_in_table)
            set_link(doctor, doctor->self, index, doctor->lanes[i], &result, result.out_bytes_per_second);
        if (is_in_table)
            set_link(doctor, index, doctor->self, doctor->lanes[i], &result, result.in_bytes_per_second);
        /* containers of one kernel may have separate shared memory */
        if (one_host && !doctor->asked) result.absent = true;
        working += report_try(doctor, target, doctor->lanes[i],
                              doctor->devices ? doctor->devices : remote.devices, &result);
        if (is_connected || i + 1 == doctor->lane_count) continue;
        doctor_disconnect(&remote);
        if (!doctor_connect(target, doctor->secret, doctor->deadline_s, &remote, &doctor->report)) return;
    }
    report_host(doctor, target, working);
    doctor_disconnect(&remote);
}

/* ---- output ---- */

static json_t *finding_json(const struct doctor_finding *finding)
{
    static const char *const levels[] = {"ok", "note", "warn", "broken"};
    return json_pack("{s:s, s:s, s:s, s:s, s:s}", "level", levels[finding->level], "id", finding->id,
                     "subject", finding->subject, "text", finding->text, "advice", finding->advice);
}

static json_t *link_json(const struct doctor *doctor, const struct weft_link *link)
{
    return json_pack("{s:s, s:s, s:s, s:b, s:I, s:I, s:s}", "from",
                     weft_link_table_host_name(doctor->table, link->from), "to",
                     weft_link_table_host_name(doctor->table, link->to), "transport", link->lane, "works",
                     link->state == WEFT_LINK_WORKS, "latency_ns", (json_int_t)link->latency_ns,
                     "bytes_per_second", (json_int_t)link->bytes_per_second, "text", link->text);
}

static void print_json(const struct doctor *doctor, int answer)
{
    json_t *findings = json_array(), *links = json_array();
    for (size_t i = 0; i < doctor->report.count; i++)
        json_array_append_new(findings, finding_json(&doctor->report.findings[i]));
    for (uint32_t i = 0; doctor->table && i < weft_link_table_count(doctor->table); i++) {
        json_array_append_new(links, link_json(doctor, weft_link_table_get(doctor->table, i)));
    }
    json_t *object = json_pack("{s:o, s:o, s:i}", "findings", findings, "links", links, "exit", answer);
    json_dumpf(object, stdout, JSON_INDENT(1));
    putchar('\n');
    json_decref(object);
}

static int exit_status(const struct doctor *doctor)
{
    enum doctor_level worst = doctor_worst_level(&doctor->report);
    return worst == DOCTOR_BROKEN ? EXIT_BROKEN : worst == DOCTOR_WARN ? EXIT_WARN : EXIT_FINE;
}

static void print_summary(const struct doctor *doctor)
{
    size_t counts[4] = {0};
    for (size_t i = 0; i < doctor->report.count; i++) counts[doctor->report.findings[i].level]++;
    doctor_print(&doctor->report, stdout, doctor->all);
    if (doctor->table && weft_link_table_count(doctor->table)) {
        putchar('\n');
        print_links(doctor, stdout);
    }
    printf("\n%zu broken, %zu warnings, %zu notes, %zu in order%s\n", counts[DOCTOR_BROKEN],
           counts[DOCTOR_WARN], counts[DOCTOR_NOTE], counts[DOCTOR_OK],
           doctor->all ? "" : " (--all shows them)");
}

/* ---- the command ---- */

static bool set_lanes(struct doctor *doctor, const char *text)
{
    char copy[256], *rest = copy;
    struct p2p_transport_spec spec;
    doctor->lane_count = 0;
    if (snprintf(copy, sizeof copy, "%s", text) >= (int)sizeof copy) return false;
    for (char *word; (word = strsep(&rest, ","));) {
        if (doctor->lane_count == LANES_MAX || strlen(word) >= DOCTOR_LANE_MAX ||
            !p2p_transport_parse(word, &spec))
            return false;
        doctor->rdma_needed = doctor->rdma_needed || strcmp(spec.backend, "verbs") == 0;
        snprintf(doctor->lanes[doctor->lane_count++], DOCTOR_LANE_MAX, "%s", word);
    }
    return true;
}

/* "PORT", "ADDRESS" or "ADDRESS:PORT". */
static bool set_listen(struct doctor_listen *listen, const char *text)
{
    static char host[256];
    char port[16];
    uint64_t number;
    if (text[0] && strspn(text, "0123456789") == strlen(text)) {
        snprintf(port, sizeof port, "%.8s", text);
    } else {
        if (!doctor_parse_target(text, host, sizeof host, port, sizeof port)) {
            tool_usage_error("weft doctor",
                             "--listen: '%s' is no address: give ADDRESS, ADDRESS:PORT or PORT", text);
            return false;
        }
        listen->host = host;
        if (!port[0]) return true; /* the port of --port, or DOCTOR_PORT */
    }
    if (!tool_parse_number("weft doctor", "--listen's port", port, 0, 65535, &number)) return false;
    listen->port = (uint16_t)number;
    return true;
}

static int set_transport(const struct cli_command *command, const struct cli_option *option, const char *text)
{
    struct doctor *doctor = option->value;
    doctor->asked = true;
    if (set_lanes(doctor, text)) return -1;
    return tool_usage_error(command->name, "--transport %s: no such list of transports", text);
}

static int parse_options(struct doctor *doctor, struct doctor_listen *listen, bool *listening, uint32_t *port,
                         int argc, char **argv, int *first_out)
{
    const struct cli_option table[] = {
        {"listen", 0, NULL,
         "serve the doctor of another host until interrupted; on all addresses with a secret, on loopback "
         "without",
         CLI_FLAG(listening)},
        {"port", 0, "PORT", "with --listen: port to listen on; 0: any free one", "4747",
         CLI_U32(port, 0, 65535)},
        {"once", 0, NULL, "with --listen: end after the first client that holds the secret",
         CLI_FLAG(&listen->once)},
        {"port-file", 0, "FILE", "with --listen: file for the port number", "", CLI_TEXT(&listen->port_file)},
        {"transport", 0, "LIST",
         "transports to try, each of which must work: shm, ucx:shm, ucx:tcp, verbs, auto, tcp; auto is what "
         "jobs "
         "use, the best of the others for each pair of processes",
         "all but tcp; one must work", CLI_CALL(set_transport, doctor)},
        {"devices", 0, "LIST", "network or RDMA devices for the tries", "the one that leads to the host",
         CLI_TEXT(&doctor->devices)},
        {"secret-file", 0, "FILE", "file with the secret, the same on both hosts",
         "WEFT_SECRET, then WEFT_SECRET_FILE", CLI_TEXT(&doctor->secret_path)},
        {"deadline", 0, "SECONDS", "limit for each step of a try", CLI_U32(&doctor->deadline_s, 1, 600)},
        {"no-tries", 0, NULL, "check the files of this machine only", CLI_FLAG(&doctor->no_tries)},
        {"links", 0, NULL, "print the link table of the last run, measure nothing",
         CLI_FLAG(&doctor->links_only)},
        {"gpu-metrics", 0, NULL, "print the health of the GPUs as metrics, check nothing else",
         CLI_FLAG(&doctor->gpu_metrics)},
        {"notify", 0, "HOST:PORT",
         "check the GPUs only, and report the findings to the coordinator of the job WEFT_JOB",
         CLI_TEXT(&doctor->coordinator)},
        {"cache", 0, "FILE", "file of the link table", "~/.cache/weft/links", CLI_TEXT(&doctor->cache_path)},
        {"no-cache", 0, NULL, "no file for the link table", CLI_FLAG(&doctor->no_cache)},
        {"root", 0, "DIR", "read /proc, /sys and /dev below DIR (files of another machine; no tries)", "",
         CLI_TEXT(&doctor->root)},
        {"all", 'a', NULL, "print the findings that are ok, too", CLI_FLAG(&doctor->all)},
        {"json", 0, NULL, "one JSON object", CLI_FLAG(&doctor->json)},
    };
    const struct cli_command command = {
        "weft doctor",
        "weft doctor [options] [HOST[:PORT] ...]\n"
        "       weft doctor --listen [options] [ADDRESS[:PORT] | PORT]",
        "Finds out which transports work on this host and to the hosts named, why others do not, and what\n"
        "to do. Changes no setting of a machine. Keeps the measured links in the file of --cache.\n",
        CLI_TABLE(table),
        .takes_arguments = true,
        .notes = "Exit status: 0 nothing to do; 1 warnings: it works, but slower or less than it could;\n"
                 "2 wrong usage; 3 a transport that was named, or that every job needs, does not work.\n"
                 "docs/doctor.md explains each finding.\n"};
    return cli_parse(&command, argc, argv, first_out);
}

/* -1: continue; otherwise the exit status. The hosts begin at argv[*first_out]. */
static int parse(struct doctor *doctor, struct doctor_listen *listen, bool *listening, int argc, char **argv,
                 int *first_out)
{
    uint32_t port = UINT32_MAX; /* not given */
    int status = parse_options(doctor, listen, listening, &port, argc, argv, first_out);
    if (status >= 0) return status;
    const int hosts = argc - *first_out;
    if (port != UINT32_MAX) listen->port = (uint16_t)port;
    if (*listening) {
        if (hosts > 1)
            return tool_usage_error("weft doctor", "--listen takes one address, not also '%s'",
                                    argv[*first_out + 1]);
        return hosts == 1 && !set_listen(listen, argv[*first_out]) ? TOOL_USAGE : -1;
    }
    const char *listener_only = port != UINT32_MAX ? "--port" : listen->once ? "--once" : NULL;
    if (!listener_only && listen->port_file) listener_only = "--port-file";
    if (listener_only) return tool_usage_error("weft doctor", "%s requires --listen", listener_only);
    if (doctor->root && hosts > 0)
        return tool_usage_error("weft doctor", "--root checks files only: no hosts");
    if (doctor->no_tries && hosts > 0)
        return tool_usage_error("weft doctor", "--no-tries checks files only: no hosts");
    if (hosts > TARGETS_MAX) return tool_usage_error("weft doctor", "more than %d hosts", TARGETS_MAX);
    return -1;
}

/* A report that could not be written is a failure. */
static int flush_report(int answer)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) return answer;
    fprintf(stderr, "weft doctor: cannot write the report: %s\n", strerror(errno));
    return EXIT_BROKEN;
}

static int examine(struct doctor *doctor, int count, char **targets)
{
    doctor_check_machine(&doctor->report, doctor->root ? doctor->root : "", doctor->rdma_needed);
    doctor->own_count = doctor->report.count;
    if (!doctor->root && !doctor->no_tries) {
        if (!open_table(doctor)) return EXIT_BROKEN;
        struct doctor_counters *counters = doctor_counters_read("");
        try_on_host(doctor);
        for (int i = 0; i < count; i++) try_host(doctor, targets[i]);
        doctor_check_rise(&doctor->report, counters);
        free(counters);
        save_table(doctor);
    }
    int answer = exit_status(doctor);
    if (doctor->json) print_json(doctor, answer);
    else print_summary(doctor);
    return flush_report(answer);
}

static int print_cached(struct doctor *doctor)
{
    if (!open_table(doctor)) return EXIT_BROKEN;
    if (weft_link_table_count(doctor->table) == 0) {
        fprintf(stderr, "weft doctor: nothing has been measured yet; run `weft doctor` without --links\n");
        return EXIT_BROKEN;
    }
    if (doctor->json) print_json(doctor, EXIT_FINE);
    else print_links(doctor, stdout);
    return flush_report(EXIT_FINE);
}

/* For the textfile collector of node_exporter. Without NVML the metric weft_gpu_nvml_up is 0. */
static int print_gpu_metrics(const struct doctor *doctor)
{
    struct gpu_health *health = malloc(sizeof *health);
    if (!health) {
        fprintf(stderr, "weft doctor: no memory\n");
        return EXIT_BROKEN;
    }
    gpu_health_read(health, doctor->root ? doctor->root : "", GPU_DEADLINE_MS);
    if (!health->has_nvml) fprintf(stderr, "weft doctor: %s\n", health->text);
    gpu_metrics_print(health, stdout);
    free(health);
    return flush_report(EXIT_FINE);
}

/* For a timer of each GPU host: the coordinator logs and shows what is wrong with it. */
static int notify(struct doctor *doctor)
{
    doctor_check_gpus(&doctor->report, doctor->root ? doctor->root : "");
    doctor_print(&doctor->report, stdout, doctor->all);
    const int answer = exit_status(doctor);
    /* health that cannot be read replaces nothing */
    if (answer == EXIT_FINE && doctor_newest_finding(&doctor->report, "gpu-nvml"))
        return flush_report(answer);
    if (doctor_notify(&doctor->report, doctor->coordinator, doctor->secret_path) != 0) return EXIT_BROKEN;
    return flush_report(answer);
}

int weft_doctor_main(int argc, char **argv)
{
    struct doctor doctor = {.deadline_s = 5};
    struct doctor_listen listen = {.port = DOCTOR_PORT};
    bool listening = false;
    set_lanes(&doctor, "shm,ucx:shm,ucx:tcp,verbs,auto");
    doctor.rdma_needed = false;
    int first, answer = parse(&doctor, &listen, &listening, argc, argv, &first);
    if (answer >= 0) return answer;
    if (!tool_read_secret("weft doctor", doctor.secret_path, NULL, &doctor.secret)) return TOOL_USAGE;
    if (listening) {
        if (!listen.host) listen.host = doctor.secret ? "0.0.0.0" : "127.0.0.1";
        listen.devices = doctor.devices;
        listen.secret = doctor.secret;
        listen.deadline_s = doctor.deadline_s;
        answer = doctor_serve(&listen);
    } else {
        answer = doctor.coordinator  ? notify(&doctor)
                 : doctor.gpu_metrics ? print_gpu_metrics(&doctor)
                 : doctor.links_only ? print_cached(&doctor)
                                     : examine(&doctor, argc - first, argv + first);
    }
    doctor_report_free(&doctor.report);
    weft_link_table_free(doctor.table);
    free(doctor.secret);
    return answer;
}
