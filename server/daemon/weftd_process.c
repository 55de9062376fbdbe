/* weftd_process.c - resources of this process, for the process metrics that every exporter has. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "server/daemon/weftd_page.h"

/* Reads the start of a file as text. false: it cannot be read. */
static bool read_text(const char *path, char *out, size_t out_bytes)
{
    FILE *file = fopen(path, "re");
    if (!file) return false;
    size_t bytes = fread(out, 1, out_bytes - 1, file);
    fclose(file);
    out[bytes] = 0;
    return bytes > 0;
}

/* The boot time lies behind one line per processor. */
static bool read_boot_seconds(unsigned long long *seconds_out)
{
    char line[512];
    bool found = false;
    FILE *file = fopen("/proc/stat", "re");
    while (file && !found && fgets(line, sizeof line, file))
        found = sscanf(line, "btime %llu", seconds_out) == 1;
    if (file) fclose(file);
    return found;
}

static uint64_t count_open_fds(void)
{
    uint64_t count = 0;
    DIR *folder = opendir("/proc/self/fd");
    if (!folder) return 0;
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) count += entry->d_name[0] != '.';
    closedir(folder);
    return count > 0 ? count - 1 : 0; /* the folder itself */
}

bool weftd_process_usage(struct weftd_process_usage *usage_out)
{
    char text[1024];
    unsigned long long user, system, start, boot;
    long pages;
    const double ticks = (double)sysconf(_SC_CLK_TCK);
    struct rlimit limit;
    if (!read_text("/proc/self/stat", text, sizeof text) || !read_boot_seconds(&boot)) return false;
    const char *after_name = strrchr(text, ')'); /* the name may contain blanks and brackets */
    /* fields 14, 15, 22 and 24 of proc(5); field 3 follows the name */
    if (!after_name || sscanf(after_name + 1,
                              " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %*d %*d %*d %*d %*d %*d"
                              " %llu %*u %ld",
                              &user, &system, &start, &pages) != 4)
        return false;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
    *usage_out = (struct weftd_process_usage){
        .cpu_seconds = (double)(user + system) / ticks,
        .start_seconds = (double)boot + (double)start / ticks,
        .resident_bytes = (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE),
        .open_fds = count_open_fds(),
        .max_fds = (uint64_t)limit.rlim_cur,
    };
    return true;
}
