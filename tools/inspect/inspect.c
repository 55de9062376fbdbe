/* inspect.c - `weft inspect`: merges the flight records of a job, prints the operation in progress, its
 * culprits and the waits. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tools/cli.h"
#include "tools/commands.h"
#include "tools/common.h"
#include "tools/inspect/inspect.h"

#define TROUBLE 1
#define UNREADABLE 3
#define TABLE_ROWS 64u

struct inspect {
    struct flight *flights;
    uint32_t count, capacity, unreadable;
    json_t *complaints;
    bool json, all;
};

/* ---- reading ---- */

static void complain(struct inspect *inspect, const char *path, const char *why)
{
    inspect->unreadable++;
    if (!inspect->json) fprintf(stderr, "weft inspect: %s is left out: %s\n", path, why);
    json_array_append_new(inspect->complaints, json_pack("{ss+ ss}", "file", path, "", "why", why));
}

static void read_file(struct inspect *inspect, const char *path)
{
    char why[400];
    if (inspect->count == inspect->capacity) {
        uint32_t capacity = inspect->capacity ? 2 * inspect->capacity : 16;
        struct flight *more = realloc(inspect->flights, capacity * sizeof *more);
        if (!more) {
            complain(inspect, path, "no memory");
            return;
        }
        inspect->flights = more;
        inspect->capacity = capacity;
    }
    struct flight *flight = &inspect->flights[inspect->count];
    if (!flight_read(path, flight, why, sizeof why)) {
        complain(inspect, path, why);
        return;
    }
    const char *what = NULL;
    for (uint32_t f = 0; f < inspect->count && !what; f++) {
        if (strcmp(inspect->flights[f].job, flight->job) != 0)
            what = "it belongs to another job than the files before it";
        else if (inspect->flights[f].rank == flight->rank) what = "it is another record of the same rank";
    }
    if (what) {
        complain(inspect, path, what);
        flight_free(flight);
        return;
    }
    inspect->count++;
}

static int is_record(const struct dirent *entry)
{
    size_t length = strlen(entry->d_name);
    return strncmp(entry->d_name, "flight-", 7) == 0 && length > 5 &&
           strcmp(entry->d_name + length - 5, ".json") == 0;
}

static void read_directory(struct inspect *inspect, const char *path)
{
    struct dirent **entries;
    int count = scandir(path, &entries, is_record, alphasort);
    if (count < 0) {
        complain(inspect, path, strerror(errno));
        return;
    }
    for (int i = 0; i < count; i++) {
        char file[4096];
        if (snprintf(file, sizeof file, "%s/%s", path, entries[i]->d_name) < (int)sizeof file)
            read_file(inspect, file);
        else complain(inspect, entries[i]->d_name, "its path is too long");
        free(entries[i]);
    }
    free(entries);
    if (count == 0) complain(inspect, path, "no file in it is called flight-*.json");
}

/* ---- tables ---- */

static double seconds(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? (double)(to_ns - from_ns) / 1e9 : 0;
}

/* Seconds since the rank began the operation in question, or since its last one if it has not called it, at
 * the time of its record. */
static double age(const struct diagnosis_member *member)
{
    const struct flight_operation *o = member->operation;
    uint64_t until =
        member->state == DIAGNOSIS_WAITING || member->state == DIAGNOSIS_NOT_CALLED || !o->ended_ns
            ? member->flight->now_ns
            : o->ended_ns;
    return seconds(member->state == DIAGNOSIS_NOT_CALLED && o->ended_ns ? o->ended_ns : o->posted_ns, until);
}

static void print_row(const struct diagnosis_group *group, const struct diagnosis_member *member)
{
    char process[128], waits[24] = "-", call[160] = "";
    const struct flight_operation *o = member->operation;
    bool in_it = member->state == DIAGNOSIS_WAITING || member->state == DIAGNOSIS_FAILED;
    int at = group->ranks < member->flight->ranks
                 ? snprintf(process, sizeof process, "rank %" PRIu32 " of the job, ", member->flight->rank)
                 : 0;
    snprintf(process + at, sizeof process - (size_t)at, "%.60s, pid %" PRId64, member->flight->host,
             member->flight->pid);
    if (in_it && o->peer != FLIGHT_NO_PEER) snprintf(waits, sizeof waits, "rank %" PRIu32, o->peer);
    if (member->is_mismatched) flight_call_text(&o->call, call, sizeof call);
    printf("%c %6" PRIu32 "  %-24s %9" PRIu64 "  %-10s  %-10s  %-10s %8" PRIu64 " %10.3f  %s\n",
           member->is_culprit ? '*' : ' ', member->rank, process, member->called_count,
           diagnosis_state_name(member->state), in_it ? o->phase : "-", waits, in_it ? o->steps : 0,
           age(member), call);
}

static void print_group(const struct inspect *inspect, const struct diagnosis_group *group)
{
    char call[160], missing[480];
    if (!group->has_unfinished) {
        printf("group %" PRIu32 " epoch %" PRIu32 ", %" PRIu32
               " ranks: every operation on record ended well\n",
               group->group, group->epoch, group->ranks);
        if (diagnosis_list_missing(group, missing, sizeof missing) > 0)
            printf("  no record of %s\n", missing);
        return;
    }
    flight_call_text(&group->call, call, sizeof call);
    printf("group %" PRIu32 " epoch %" PRIu32 ", %" PRIu32 " ranks, operation %" PRIu64 ": %s\n\n",
           group->group, group->epoch, group->ranks, group->sequence, call);
    printf("    rank  %-24s %9s  %-10s  %-10s  %-10s %8s %10s\n", "process", "called", "state", "phase",
           "waits for", "steps", "since s");
    uint32_t rows = 0;
    for (int turn = 0; turn < 2; turn++) /* first the culprits, then the other ranks */
        for (uint32_t m = 0; m < group->member_count && (inspect->all || rows < TABLE_ROWS); m++)
            if (group->members[m].is_culprit == (turn == 0)) print_row(group, &group->members[m]), rows++;
    if (rows < group->member_count)
        printf("          %" PRIu32 " more ranks; --all shows them\n", group->member_count - rows);
    if (diagnosis_list_missing(group, missing, sizeof missing) > 0)
        printf("*         no record of %s\n", missing);
    printf("\n  behind: %s\n", group->diagnosis_text);
}

/* Prints the sentences with which the processes ended, each once. */
static void print_ends(const struct inspect *inspect)
{
    uint32_t printed = 0;
    for (uint32_t f = 0; f < inspect->count && printed < 4; f++) {
        bool known = inspect->flights[f].text[0] == 0;
        for (uint32_t e = 0; e < f && !known; e++)
            known = strcmp(inspect->flights[e].text, inspect->flights[f].text) == 0;
        if (known) continue;
        printf("  rank %" PRIu32 " wrote its record because: %s\n", inspect->flights[f].rank,
               inspect->flights[f].text);
        printed++;
    }
}

/* ---- JSON ---- */

static json_t *operation_json(const struct flight_call *call)
{
    return json_pack("{ss ss ss ss sI sI}", "kind", call->kind, "dtype", call->dtype, "op", call->op, "plan",
                     call->plan, "count", (json_int_t)call->count, "root", (json_int_t)call->root);
}

static json_t *member_json(const struct diagnosis_member *member)
{
    const struct flight_operation *o = member->operation;
    bool in_it = member->state == DIAGNOSIS_WAITING || member->state == DIAGNOSIS_FAILED;
    json_t *object = json_pack("{sI sI ss sI sI ss sf sb sb}", "rank", (json_int_t)member->rank, "job_rank",
                               (json_int_t)member->flight->rank, "host", member->flight->host, "pid",
                               (json_int_t)member->flight->pid, "called", (json_int_t)member->called_count,
                               "state", diagnosis_state_name(member->state), "since_s", age(member), "behind",
                               member->is_culprit, "differs", member->is_mismatched);
    if (in_it) {
        json_object_set_new(object, "phase", json_string(o->phase));
        json_object_set_new(object, "steps", json_integer((json_int_t)o->steps));
        if (o->peer != FLIGHT_NO_PEER) json_object_set_new(object, "waits_for", json_integer(o->peer));
    }
    if (member->is_mismatched) json_object_set_new(object, "call", operation_json(&o->call));
    return object;
}

static json_t *group_json(const struct diagnosis_group *group)
{
    json_t *members = json_array(), *missing = json_array();
    uint32_t next = 0;
    for (uint32_t m = 0; m < group->member_count; next = group->members[m++].rank + 1) {
        json_array_append_new(members, member_json(&group->members[m]));
        if (group->members[m].rank > next)
            json_array_append_new(
                missing, json_pack("[II]", (json_int_t)next, (json_int_t)group->members[m].rank - 1));
    }
    if (next < group->ranks)
        json_array_append_new(missing, json_pack("[II]", (json_int_t)next, (json_int_t)group->ranks - 1));
    json_t *object = json_pack("{sI sI sI sb sb ss so so}", "group", (json_int_t)group->group, "epoch",
                               (json_int_t)group->epoch, "ranks", (json_int_t)group->ranks, "trouble",
                               group->has_unfinished, "mismatch", group->mismatch, "behind",
                               group->diagnosis_text, "members", members, "missing_ranges", missing);
    if (group->has_unfinished) {
        json_object_set_new(object, "sequence", json_integer((json_int_t)group->sequence));
        json_object_set_new(object, "operation", operation_json(&group->call));
    }
    return object;
}

static bool print_json(struct inspect *inspect, const struct diagnosis *diagnosis, bool trouble)
{
    json_t *groups = json_array();
    for (uint32_t g = 0; g < diagnosis->group_count; g++)
        json_array_append_new(groups, group_json(&diagnosis->groups[g]));
    json_t *root = json_pack("{sI sb so sO}", "records", (json_int_t)inspect->count, "trouble", trouble,
                             "groups", groups, "left_out", inspect->complaints);
    bool fine = root && json_dumpf(root, stdout, JSON_INDENT(1)) == 0 && putchar('\n') != EOF;
    json_decref(root);
    return fine;
}

/* ---- the command ---- */

static int report(struct inspect *inspect)
{
    struct diagnosis diagnosis;
    bool trouble = false, written = true;
    if (!diagnose_flights(inspect->flights, inspect->count, &diagnosis)) {
        fprintf(stderr, "weft inspect: no memory, or more than %u groups in these records\n",
                DIAGNOSIS_GROUPS_MAX);
        return UNREADABLE;
    }
    for (uint32_t g = 0; g < diagnosis.group_count; g++) trouble |= diagnosis.groups[g].has_unfinished;
    for (uint32_t f = 0; f < inspect->count; f++)
        trouble |= inspect->flights[f].text[0] != 0; /* the process failed between two operations */
    if (inspect->json) {
        written = print_json(inspect, &diagnosis, trouble);
    } else if (inspect->count > 0) {
        printf("job %s: %" PRIu32 " of %" PRIu32 " ranks left a record\n", inspect->flights[0].job,
               inspect->count, inspect->flights[0].ranks);
        for (uint32_t g = 0; g < diagnosis.group_count; g++) print_group(inspect, &diagnosis.groups[g]);
        if (diagnosis.group_count == 0) printf("no operation is on record\n");
        print_ends(inspect);
    }
    written &= fflush(stdout) == 0;
    diagnosis_free(&diagnosis);
    if (!written) fprintf(stderr, "weft inspect: cannot write: %s\n", strerror(errno));
    if (!written) return UNREADABLE;
    return trouble ? TROUBLE : inspect->unreadable ? UNREADABLE : 0;
}

/* -1: continue; otherwise the exit status. */
static int parse(struct inspect *inspect, int argc, char **argv, int *first_out)
{
    const struct cli_option table[] = {
        {"json", 0, NULL, "one JSON object instead of tables", CLI_FLAG(&inspect->json)},
        {"all", 0, NULL, "a row for every rank; without it at most 64 rows of a group, culprits first",
         CLI_FLAG(&inspect->all)},
    };
    const struct cli_command command = {
        "weft inspect",
        "weft inspect [--json] [--all] DIR|FILE...",
        "Merges the flight records of a job's ranks. For each group it prints the operation in progress,\n"
        "the ranks that hold it up, and which rank waits for which. A DIR stands for its files\n"
        "flight-*.json; `weft run` keeps them among its logs.\n",
        CLI_TABLE(table),
        .takes_arguments = true,
        .notes = "A rank without a record was killed, is stopped, or still runs. Ages are those at the\n"
                 "time of the record. weft_dump_events writes a record at any time; with recorder.signal\n"
                 "a signal writes one.\n"
                 "\n"
                 "Exit status: 0 every operation succeeded, 1 a rank is late, has failed or has called\n"
                 "differently, 2 wrong usage, 3 a file could not be read or is not of this job, and the\n"
                 "others show no fault.\n"};
    int status = cli_parse(&command, argc, argv, first_out);
    if (status >= 0) return status;
    if (*first_out < argc) return -1;
    return tool_usage_error("weft inspect", "the directory or files of flight records are missing");
}

int weft_inspect_main(int argc, char **argv)
{
    struct inspect inspect = {.json = false};
    int first, status = parse(&inspect, argc, argv, &first);
    if (status >= 0) return status;
    inspect.complaints = json_array();
    for (int i = first; i < argc; i++) {
        struct stat file_stat;
        if (stat(argv[i], &file_stat) == 0 && S_ISDIR(file_stat.st_mode)) read_directory(&inspect, argv[i]);
        else read_file(&inspect, argv[i]);
    }
    status = report(&inspect);
    for (uint32_t f = 0; f < inspect.count; f++) flight_free(&inspect.flights[f]);
    free(inspect.flights);
    json_decref(inspect.complaints);
    return status;
}
