/* machine.c - reads the files of one host; checks memory and clock; see machine.h. */
#include "tools/doctor/machine.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MEMLOCK_WANTED_MIB = 64, SHM_WANTED_MIB = 256, FILES_WANTED = 4096 };

/* ---- reading ---- */

bool machine_text(const char *root, const char *path, char *out, size_t capacity)
{
    char name[PATH_MAX];
    out[0] = 0;
    if (snprintf(name, sizeof name, "%s%s", root, path) >= (int)sizeof name) return false;
    FILE *file = fopen(name, "re");
    if (!file) return false;
    size_t bytes = fread(out, 1, capacity - 1, file);
    bool fine = !ferror(file);
    fclose(file);
    while (bytes > 0 && isspace((unsigned char)out[bytes - 1])) bytes--;
    out[bytes] = 0;
    return fine;
}

bool machine_number(const char *root, const char *path, int64_t *out)
{
    char text[64], *end;
    if (!machine_text(root, path, text, sizeof text) || !text[0]) return false;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || errno) return false;
    *out = value;
    return true;
}

bool machine_exists(const char *root, const char *path)
{
    char name[PATH_MAX];
    struct stat about;
    return snprintf(name, sizeof name, "%s%s", root, path) < (int)sizeof name && stat(name, &about) == 0;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(a, b);
}

size_t machine_list(const char *root, const char *path, char names[][64], size_t capacity)
{
    char name[PATH_MAX];
    size_t count = 0;
    if (snprintf(name, sizeof name, "%s%s", root, path) >= (int)sizeof name) return 0;
    DIR *folder = opendir(name);
    struct dirent *entry;
    while (folder && count < capacity && (entry = readdir(folder))) {
        if (entry->d_name[0] != '.' && strlen(entry->d_name) < 64)
            memcpy(names[count++], entry->d_name, strlen(entry->d_name) + 1);
    }
    if (folder) closedir(folder);
    qsort(names, count, sizeof names[0], compare_names);
    return count;
}

bool machine_in_list(const char *list, uint32_t number)
{
    while (*list) {
        char *end;
        unsigned long first = strtoul(list, &end, 10), last = first;
        if (end == list) return false;
        if (*end == '-') last = strtoul(end + 1, &end, 10);
        if (number >= first && number <= last) return true;
        list = *end == ',' ? end + 1 : end + strlen(end);
    }
    return false;
}

/* ---- memory ---- */

/* The soft limit of a line of /proc/self/limits; UINT64_MAX: unlimited. */
static bool soft_limit(const char *limits, const char *name, uint64_t *soft, uint64_t *hard)
{
    const char *line = strstr(limits, name);
    char words[2][32];
    if (!line || sscanf(line + strlen(name), " %31s %31s", words[0], words[1]) != 2) return false;
    *soft = strcmp(words[0], "unlimited") == 0 ? UINT64_MAX : strtoull(words[0], NULL, 10);
    *hard = strcmp(words[1], "unlimited") == 0 ? UINT64_MAX : strtoull(words[1], NULL, 10);
    return true;
}

static void check_limits(struct doctor_report *report, const char *root, bool has_rdma)
{
    char limits[DOCTOR_TEXT_MAX];
    uint64_t soft, hard;
    if (!machine_text(root, "/proc/self/limits", limits, sizeof limits)) return;
    if (soft_limit(limits, "Max locked memory", &soft, &hard)) {
        const char *advice = "raise it: `ulimit -l unlimited`, LimitMEMLOCK=infinity in the unit, or memlock "
                             "in /etc/security/limits.conf";
        uint64_t mib = soft >> 20;
        if (soft == UINT64_MAX)
            doctor_add_finding(report, DOCTOR_OK, "memlock", "limits", NULL, "locked memory is unlimited");
        else if (mib >= MEMLOCK_WANTED_MIB)
            doctor_add_finding(report, DOCTOR_OK, "memlock", "limits", NULL,
                               "up to %" PRIu64 " MiB may be locked", mib);
        else
            doctor_add_finding(
                report, has_rdma ? DOCTOR_BROKEN : DOCTOR_NOTE, "memlock", "limits", advice,
                "only %" PRIu64 " KiB may be locked%s; RDMA needs what it registers, %d MiB and more",
                soft >> 10, hard > soft ? " (the hard limit is higher)" : "", MEMLOCK_WANTED_MIB);
    }
    if (soft_limit(limits, "Max open files", &soft, &hard)) {
        if (soft >= FILES_WANTED)
            doctor_add_finding(report, DOCTOR_OK, "open-files", "limits", NULL,
                               "%" PRIu64 " files may be open", soft);
        else
            doctor_add_finding(report, DOCTOR_WARN, "open-files", "limits",
                               "raise it: `ulimit -n 65536` or LimitNOFILE= in the unit",
                               "only %" PRIu64
                               " files may be open: a job of some hundred ranks needs several per rank",
                               soft);
    }
}

static void check_ptrace(struct doctor_report *report, const char *root)
{
    static const char *const meanings[] = {"any process of the same user", "only descendants",
                                           "only administrators", "no process"};
    int64_t scope;
    if (!machine_number(root, "/proc/sys/kernel/yama/ptrace_scope", &scope)) {
        doctor_add_finding(report, DOCTOR_OK, "ptrace-scope", "kernel", NULL,
                           "no Yama: processes of one user may read each other's memory (CMA)");
        return;
    }
    if (scope == 0) {
        doctor_add_finding(report, DOCTOR_OK, "ptrace-scope", "kernel", NULL,
                           "0: processes of one user may read each other's memory (CMA)");
        return;
    }
    doctor_add_finding(
        report, DOCTOR_WARN, "ptrace-scope", "kernel",
        "`sysctl kernel.yama.ptrace_scope=0`, or take buffers from weft_alloc, which are mapped and "
        "need no CMA",
        "%" PRId64
        ": %s may read a process's memory, so large messages from ordinary memory are copied twice",
        scope, scope >= 0 && scope <= 3 ? meanings[scope] : "few processes");
}

/* The size= of the tmpfs on /dev/shm, in bytes; 0: not given (half of the memory applies). */
static bool shm_mount(const char *mounts, uint64_t *bytes_out)
{
    for (const char *line = mounts; line && *line;
         line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        char place[64], kind[32], options[512];
        if (sscanf(line, "%*s %63s %31s %511s", place, kind, options) != 3 || strcmp(place, "/dev/shm") != 0)
            continue;
        const char *size = strstr(options, "size=");
        *bytes_out = 0;
        if (!size) return true;
        char *unit;
        uint64_t value = strtoull(size + 5, &unit, 10);
        *bytes_out = *unit == 'k'   ? value << 10
                     : *unit == 'm' ? value << 20
                     : *unit == 'g' ? value << 30
                                    : value;
        return true;
    }
    return false;
}

static void check_shm(struct doctor_report *report, const char *root)
{
    char mounts[16384];
    uint64_t bytes;
    if (!machine_text(root, "/proc/self/mounts", mounts, sizeof mounts)) return;
    if (!shm_mount(mounts, &bytes)) {
        doctor_add_finding(report, DOCTOR_NOTE, "shm-size", "/dev/shm",
                           "mount a tmpfs there if UCX or other libraries of the job need it",
                           "not mounted; weft's own segments do not need it");
    } else if (bytes == 0 || bytes >> 20 >= SHM_WANTED_MIB) {
        doctor_add_finding(report, DOCTOR_OK, "shm-size", "/dev/shm", NULL,
                           bytes ? "%" PRIu64 " MiB" : "half of the memory", bytes >> 20);
    } else {
        doctor_add_finding(report, DOCTOR_WARN, "shm-size", "/dev/shm",
                           "`docker run --shm-size=1g`, or `mount -o remount,size=1g /dev/shm`",
                           "only %" PRIu64
                           " MiB: UCX's shared memory (and NCCL's) does not fit; weft's own does not use it",
                           bytes >> 20);
    }
}

/* The word in brackets of "always [madvise] never". */
static bool selected_word(const char *text, char *out, size_t capacity)
{
    const char *open = strchr(text, '['), *close = open ? strchr(open, ']') : NULL;
    if (!close) return false;
    snprintf(out, capacity, "%.*s", (int)(close - open - 1), open + 1);
    return true;
}

static void check_huge_pages(struct doctor_report *report, const char *root)
{
    char text[256], word[32], meminfo[DOCTOR_TEXT_MAX];
    uint64_t reserved = 0;
    machine_text(root, "/proc/meminfo", meminfo, sizeof meminfo);
    const char *line = strstr(meminfo, "HugePages_Total:");
    if (line) reserved = strtoull(line + strlen("HugePages_Total:"), NULL, 10);
    if (machine_text(root, "/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof text) &&
        selected_word(text, word, sizeof word)) {
        if (strcmp(word, "never") == 0 && reserved == 0) {
            doctor_add_finding(
                report, DOCTOR_WARN, "huge-pages", "memory",
                "`echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`",
                "neither transparent nor reserved ones: first touch of large buffers is several "
                "times slower");
        } else {
            doctor_add_finding(report, DOCTOR_OK, "huge-pages", "memory", NULL,
                               "transparent: %s; reserved: %" PRIu64, word, reserved);
        }
    }
    if (machine_text(root, "/sys/kernel/mm/transparent_hugepage/shmem_enabled", text, sizeof text) &&
        selected_word(text, word, sizeof word)) {
        bool off = strcmp(word, "never") == 0 || strcmp(word, "deny") == 0;
        doctor_add_finding(
            report, off ? DOCTOR_NOTE : DOCTOR_OK, "huge-pages-shared", "memory",
            off ? "`echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled` makes first "
                  "touch of weft_alloc's memory faster"
                : NULL,
            "of shared memory: %s", word);
    }
}

void doctor_check_memory(struct doctor_report *report, const char *root, bool has_rdma)
{
    check_limits(report, root, has_rdma);
    check_ptrace(report, root);
    check_shm(report, root);
    check_huge_pages(report, root);
}

/* ---- clock ---- */

void doctor_check_clock(struct doctor_report *report, const char *root)
{
    char source[64];
    if (!machine_text(root, "/sys/devices/system/clocksource/clocksource0/current_clocksource", source,
                      sizeof source) ||
        !source[0])
        return;
    static const char *const slow[] = {"hpet", "acpi_pm", "jiffies", "pit", "refined-jiffies"};
    for (size_t i = 0; i < sizeof slow / sizeof slow[0]; i++) {
        if (strcmp(source, slow[i]) != 0) continue;
        doctor_add_finding(
            report, DOCTOR_WARN, "clock-source", source,
            "find out why the kernel does not use tsc (`dmesg | grep -i clocksource`)",
            "reading the clock takes a system call (about 1 us): every wait and every deadline pays it");
        return;
    }
    doctor_add_finding(report, DOCTOR_OK, "clock-source", source, NULL, "read without a system call");
}

void doctor_check_machine(struct doctor_report *report, const char *root, bool need_rdma)
{
    bool has_rdma = doctor_check_rdma(report, root, need_rdma);
    doctor_check_memory(report, root, has_rdma || need_rdma);
    doctor_check_network(report, root);
    doctor_check_accelerator(report, root, has_rdma);
    doctor_check_gpus(report, root);
    doctor_check_clock(report, root);
}
