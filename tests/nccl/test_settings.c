/* test_settings.c - options, devices and errors of the plugin. Options are read once in a process, so each
 * case runs in a child of its own. The argument is the plugin. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/nccl/harness.h"

static const char *plugin;

/* Runs `run` with the variables "NAME=value"; returns its exit status. */
static int in_child(void (*run)(struct harness *harness), const char *const *variables)
{
    struct harness harness = {.plugin = plugin};
    int status;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        for (; *variables; variables++) putenv(strdup(*variables));
        CHECK(driver_open(&harness.driver, plugin, 0), "the plugin cannot be opened");
        run(&harness);
        fflush(NULL);
        _exit(0);
    }
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

/* One device for each entry; messages over the second; the third has no address. */
static void rails(struct harness *harness)
{
    struct driver *driver = &harness->driver;
    struct nccl_properties_v12 one, two;
    struct pair pair = {.driver = driver};
    char handle[NCCL_HANDLE_BYTES], from[8] = "rail", to[8] = "";
    void *context, *listener;
    int count;
    CHECK_OK(driver_init(driver, 1, &context));
    CHECK_OK(driver_devices(driver, &count));
    CHECK(count == 3, "%d devices, not 3", count);
    CHECK_OK(driver_properties(driver, 0, &one));
    CHECK_OK(driver_properties(driver, 2, &two));
    CHECK(strcmp(one.name, "lo") == 0 && strcmp(two.name, "none0") == 0, "devices %s and %s", one.name,
          two.name);
    CHECK(one.guid != two.guid && one.speed >= 10000 && two.members.devices[0] == 2,
          "properties of the rails");
    CHECK(driver_properties(driver, 3, &two) == NCCL_RESULT_INTERNAL, "device 3 of 3 has properties");
    CHECK(driver_listen(driver, context, 3, handle, &listener) == NCCL_RESULT_INTERNAL,
          "listen on device 3 of 3");
    CHECK(driver_listen(driver, context, 2, handle, &listener) == NCCL_RESULT_SYSTEM && !listener,
          "listen on a device without an address");
    CHECK_OK(driver_listen(driver, context, 1, handle, &listener));
    pair.send_context = pair.recv_context = context;
    while (!pair.send || !pair.recv) {
        if (!pair.send) CHECK_OK(driver_connect(driver, context, 1, handle, &pair.send));
        if (!pair.recv) CHECK_OK(driver_accept(driver, listener, &pair.recv));
    }
    CHECK_OK(driver_close_listen(driver, listener));
    transfer(&pair, from, sizeof from, to, sizeof to, 0);
    CHECK(strcmp(to, "rail") == 0, "the message is wrong");
    pair_close(&pair);
    CHECK_OK(driver_finalize(driver, context));
}

/* init fails with a sentence and leaves no context. */
static void refused(struct harness *harness)
{
    void *context = harness;
    enum nccl_result result = driver_init(&harness->driver, 1, &context);
    CHECK(result == NCCL_RESULT_ARGUMENT || result == NCCL_RESULT_SYSTEM, "a wrong option gave %d",
          (int)result);
    CHECK(!context, "init has failed and left a context");
    CHECK(driver_warning_count() > 0, "the reason was not logged");
    CHECK_OK(driver_finalize(&harness->driver, context));
    CHECK(driver_init(&harness->driver, 2, &context) == result, "the second init gave another result");
}

/* Ranks with the job's secret connect. */
static void one_secret(struct harness *harness)
{
    struct pair pair;
    char from[8] = "secret", to[8] = "";
    pair_open(&pair, harness);
    transfer(&pair, from, sizeof from, to, sizeof to, 0);
    CHECK(strcmp(to, "secret") == 0, "the message is wrong");
    pair_close(&pair);
}

/* Without verbs only host memory is registered. */
static void kinds(struct harness *harness)
{
    struct pair pair;
    void *memory = NULL;
    pair_open(&pair, harness);
    CHECK(harness->driver.v12->reg_mr(pair.send, &pair, 8, NCCL_POINTER_CUDA, &memory) ==
              NCCL_RESULT_INTERNAL,
          "CUDA memory was registered");
    CHECK(driver_reg_dmabuf(&harness->driver, pair.send, &pair, 8, 0, 0, &memory) == NCCL_RESULT_INTERNAL,
          "a dma-buf was registered");
    struct nccl_properties_v12 properties;
    CHECK_OK(driver_properties(&harness->driver, 0, &properties));
    CHECK(properties.pointers == NCCL_POINTER_HOST, "device memory is offered");
    pair_close(&pair);
}

static int expect(const char *name, void (*run)(struct harness *harness), const char *const *variables)
{
    bool is_ok = in_child(run, variables) == 0;
    printf("%s %s\n", is_ok ? "ok  " : "FAIL", name);
    return !is_ok;
}

int main(int count, char **arguments)
{
    char path[] = "/tmp/nccl-secret-XXXXXX", option[64];
    int failed = 0, fd = mkstemp(path);
    plugin = arguments[count - 1];
    if (fd < 0 || fchmod(fd, 0600) != 0 || write(fd, "sixteen letters and more", 24) != 24) return 1;
    close(fd);
    snprintf(option, sizeof option, "WEFT_JOB_SECRET_FILE=%s", path);
    failed +=
        expect("rails", rails,
               (const char *[]){"WEFT_TRANSPORT_BACKEND=shm", "WEFT_TRANSPORT_DEVICES=lo,lo none0", NULL});
    failed += expect("no device", refused, (const char *[]){"WEFT_TRANSPORT_DEVICES=,", NULL});
    failed += expect("a path as device", refused, (const char *[]){"WEFT_TRANSPORT_DEVICES=../lo", NULL});
    failed += expect("wrong deadline", refused, (const char *[]){"WEFT_NCCL_DEADLINE=soon", NULL});
    failed += expect("no secret file", refused, (const char *[]){"WEFT_JOB_SECRET_FILE=/nonexistent", NULL});
    failed += expect("secret", one_secret, (const char *[]){"WEFT_TRANSPORT_BACKEND=tcp", option, NULL});
    failed += expect("kinds of memory", kinds, (const char *[]){"WEFT_TRANSPORT_BACKEND=tcp", NULL});
    unlink(path);
    return failed > 0;
}
