/* test_doctor.c - findings of doctor about machines made of files: one with mlx5 ports, one with little
 * lockable memory, one under Yama, ... Each finding is provoked, and absent on the counterpart. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/temp_dir.h"
#include "tools/doctor/machine.h"
#include "tools/doctor/rdma_port.h"
#include "tools/doctor/remote.h"

struct file {
    const char *path, *text;
};

static char *root;
static struct doctor_report report;

static int set_up(void **state)
{
    root = temp_dir_make();
    return root ? 0 : -1;
}

static int tear_down(void **state)
{
    temp_dir_remove(root);
    doctor_report_free(&report);
    return 0;
}

static void put_bytes(const char *path, const void *bytes, size_t count)
{
    char name[1024];
    assert_true(snprintf(name, sizeof name, "%s%s", root, path) < (int)sizeof name);
    for (char *at = name + strlen(root) + 1; (at = strchr(at, '/')); at++) {
        *at = 0;
        assert_true(mkdir(name, 0700) == 0 || errno == EEXIST);
        *at = '/';
    }
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

static void put(const char *path, const char *text)
{
    put_bytes(path, text, strlen(text));
}

static void put_all(const struct file *files)
{
    for (; files->path; files++) put(files->path, files->text);
}

static void look(bool need_rdma)
{
    doctor_report_free(&report);
    doctor_check_machine(&report, root, need_rdma);
    for (size_t i = 0; i < report.count; i++) /* every finding that is not ok has advice */
        if (report.findings[i].level != DOCTOR_OK && !report.findings[i].advice[0])
            fail_msg("%s: %s", report.findings[i].id, report.findings[i].text);
}

static const struct doctor_finding *found_on(const char *id, const char *subject)
{
    for (size_t i = 0; i < report.count; i++) {
        if (strcmp(report.findings[i].id, id) == 0 &&
            (!subject || strcmp(report.findings[i].subject, subject) == 0))
            return &report.findings[i];
    }
    return NULL;
}

/* Checks that there is such a finding at this level, that it contains `words`, and that it has advice unless
 * it is ok. */
static void check_finding(const char *id, const char *subject, enum doctor_level level, const char *words)
{
    const struct doctor_finding *finding = found_on(id, subject);
    if (!finding) fail_msg("no finding %s", id);
    if (finding->level != level)
        fail_msg("%s is %s: %s", id, doctor_level_name(finding->level), finding->text);
    if (!strstr(finding->text, words)) fail_msg("%s has '%s', not '%s'", id, finding->text, words);
    if (level >= DOCTOR_WARN && !finding->advice[0]) fail_msg("%s has no advice", id);
}

static void an_empty_machine_is_noted_and_not_broken(void **state)
{
    look(false);
    check_finding("rdma-device", NULL, DOCTOR_NOTE, "no RDMA device");
    assert_int_equal(doctor_worst_level(&report), DOCTOR_NOTE);
    look(true);
    check_finding("rdma-device", NULL, DOCTOR_BROKEN, "no RDMA device");
}

#define IB "/sys/class/infiniband/mlx5_0"
static const struct file roce_machine[] = {
    {IB "/ports/1/state", "4: ACTIVE\n"},
    {IB "/ports/1/rate", "100 Gb/sec (4X EDR)\n"},
    {IB "/ports/1/link_layer", "Ethernet\n"},
    {IB "/ports/1/gids/0", "fe80:0000:0000:0000:0202:c9ff:fe00:0001\n"},
    {IB "/ports/1/gids/1", "fe80:0000:0000:0000:0202:c9ff:fe00:0001\n"},
    {IB "/ports/1/gids/2", "0000:0000:0000:0000:0000:ffff:0a00:0001\n"},
    {IB "/ports/1/gids/3", "0000:0000:0000:0000:0000:ffff:0a00:0001\n"},
    {IB "/ports/1/gids/4", "0000:0000:0000:0000:0000:0000:0000:0000\n"},
    {IB "/ports/1/gid_attrs/types/0", "IB/RoCE v1\n"},
    {IB "/ports/1/gid_attrs/types/1", "RoCE v2\n"},
    {IB "/ports/1/gid_attrs/types/2", "IB/RoCE v1\n"},
    {IB "/ports/1/gid_attrs/types/3", "RoCE v2\n"},
    {IB "/ports/1/gid_attrs/ndevs/1", "eth2\n"},
    {IB "/ports/1/gid_attrs/ndevs/3", "eth2\n"},
    {IB "/device/numa_node", "1\n"},
    {IB "/device/vendor", "0x15b3\n"},
    {IB "/device/current_link_speed", "16.0 GT/s PCIe\n"},
    {IB "/device/max_link_speed", "16.0 GT/s PCIe\n"},
    {IB "/device/current_link_width", "16\n"},
    {IB "/device/max_link_width", "16\n"},
    {"/sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n"},
    {"/dev/infiniband/uverbs0", ""},
    {"/sys/class/net/eth2/mtu", "9000\n"},
    {"/sys/class/net/eth2/type", "1\n"},
    {"/sys/class/net/eth2/speed", "100000\n"},
    {"/sys/class/net/eth2/operstate", "up\n"},
    {"/sys/class/net/eth2/device/vendor", "0x15b3\n"},
    {"/sys/devices/system/node/node1/cpulist", "16-31\n"},
    {"/proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-31\n"},
    {"/proc/self/limits", "Limit  Soft Limit  Hard Limit  Units\nMax locked memory  unlimited  unlimited  "
                          "bytes\nMax open files  65536  65536  files\n"},
    {NULL, NULL},
};

/* A configuration space with two capabilities, the second PCI Express with this device control word. */
static void put_config(uint16_t control, size_t bytes)
{
    uint8_t config[256] = {0x15, 0xb3};
    config[6] = 0x10;
    config[0x34] = 0x40;
    config[0x40] = 0x05;
    config[0x41] = 0x60;
    config[0x60] = 0x10;
    config[0x68] = (uint8_t)control;
    config[0x69] = (uint8_t)(control >> 8);
    put_bytes(IB "/device/config", config, bytes);
}

static void a_good_roce_machine_is_in_order(void **state)
{
    put_all(roce_machine);
    put_config(0x2810, 256);
    look(true);
    check_finding("rdma-port", "mlx5_0:1", DOCTOR_OK, "100 Gb/sec");
    check_finding("rdma-gid", "mlx5_0:1", DOCTOR_OK, "GID 3 (RoCE v2, eth2) of 4");
    check_finding("rdma-mtu", "mlx5_0:1", DOCTOR_OK, "4096");
    check_finding("pcie-relaxed", "mlx5_0", DOCTOR_OK, "allowed");
    check_finding("pcie-link", "mlx5_0", DOCTOR_OK, "16.0 GT/s");
    check_finding("numa", "mlx5_0", DOCTOR_OK, "node 1");
    check_finding("memlock", NULL, DOCTOR_OK, "unlimited");
    check_finding("net-mtu", "eth2", DOCTOR_OK, "9000");
    assert_true(doctor_worst_level(&report) <= DOCTOR_NOTE);
}

static void faults_of_rdma_are_named(void **state)
{
    put_all(roce_machine);
    put_config(0x2800, 256);
    put("/sys/class/net/eth2/mtu", "1500\n");
    put(IB "/device/current_link_width", "8\n");
    put("/proc/self/status", "Cpus_allowed_list:\t0-3,8\n");
    put("/proc/self/limits",
        "Max locked memory  8388608  unlimited  bytes\nMax open files  1024  4096  files\n");
    look(true);
    check_finding("rdma-mtu", "mlx5_0:1", DOCTOR_WARN, "path MTU 1024");
    check_finding("net-mtu", "eth2", DOCTOR_WARN, "1500");
    check_finding("pcie-relaxed", "mlx5_0", DOCTOR_WARN, "off");
    check_finding("pcie-link", "mlx5_0", DOCTOR_WARN, "x8; the card can do 16.0 GT/s PCIe x16");
    check_finding("numa", "mlx5_0", DOCTOR_WARN, "may only run on 0-3,8");
    check_finding("memlock", NULL, DOCTOR_BROKEN, "8192 KiB may be locked (the hard limit is higher)");
    check_finding("open-files", NULL, DOCTOR_WARN, "1024");
}

static void ordinary_users_see_64_bytes_of_a_card(void **state)
{
    put_all(roce_machine);
    put_config(0x2810, 64);
    look(false);
    check_finding("pcie-relaxed", "mlx5_0", DOCTOR_NOTE, "may not read");
}

static void a_broken_list_of_capabilities_ends(void **state)
{
    uint8_t config[256] = {0};
    config[6] = 0x10;
    config[0x34] = 0x40;
    config[0x41] = 0x40; /* points at itself */
    put_all(roce_machine);
    put_bytes(IB "/device/config", config, sizeof config);
    look(false);
    check_finding("pcie-relaxed", "mlx5_0", DOCTOR_NOTE, "no PCI Express");
    config[0x34] = 0xfc; /* the last 4 bytes: nothing behind them is read */
    config[0xfc] = 0x10;
    put_bytes(IB "/device/config", config, sizeof config);
    look(false);
    check_finding("pcie-relaxed", "mlx5_0", DOCTOR_NOTE, "no PCI Express");
}

static void ports_that_are_down_say_what_to_do(void **state)
{
    static const struct {
        const char *state, *advice;
    } cases[] = {
        {"1: DOWN\n", "cable"},
        {"2: INIT\n", "subnet manager"},
        {"3: ARMED\n", "subnet manager"},
        {"", "cable"},
    };
    put_all(roce_machine);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        put(IB "/ports/1/state", cases[i].state);
        look(true);
        check_finding("rdma-port", "mlx5_0:1", DOCTOR_WARN, "port state");
        assert_non_null(strstr(found_on("rdma-port", "mlx5_0:1")->advice, cases[i].advice));
        check_finding("rdma-device", NULL, DOCTOR_BROKEN, "none of 1");
    }
}

static void roce_needs_a_routable_gid(void **state)
{
    put_all(roce_machine);
    put(IB "/ports/1/gid_attrs/types/1", "IB/RoCE v1\n");
    put(IB "/ports/1/gid_attrs/types/3", "IB/RoCE v1\n");
    look(false);
    check_finding("rdma-gid", "mlx5_0:1", DOCTOR_WARN, "none of RoCE v2");
    for (char index = '0'; index < '4'; index++) {
        char path[80];
        snprintf(path, sizeof path, IB "/ports/1/gids/%c", index);
        put(path, "0000:0000:0000:0000:0000:0000:0000:0000\n");
    }
    look(false);
    check_finding("rdma-gid", "mlx5_0:1", DOCTOR_BROKEN, "without any GID");
}

static void infiniband_ports_with_and_without_lid(void **state)
{
    put_all(roce_machine);
    put(IB "/ports/1/link_layer", "InfiniBand\n");
    put(IB "/ports/1/lid", "0x0\n");
    put(IB "/ports/1/rate", "25 Gb/sec (1X EDR)\n");
    look(true);
    check_finding("rdma-rate", "mlx5_0:1", DOCTOR_WARN, "only one lane");
    assert_int_equal(doctor_newest_finding(&report, "rdma-port")->level, DOCTOR_WARN); /* no LID */
    check_finding("rdma-gid", "mlx5_0:1", DOCTOR_OK, "subnet prefix fe80:0000:0000:0000 (the default)");
    put(IB "/ports/1/lid", "0x12\n");
    put(IB "/ports/1/rate", "100 Gb/sec (4X EDR)\n");
    look(true);
    check_finding("rdma-port", "mlx5_0:1", DOCTOR_OK, "InfiniBand");
    assert_null(found_on("rdma-rate", NULL));
}

/* ---- what the fabric decides ---- */

static void put_infiniband(void)
{
    put_all(roce_machine);
    put(IB "/ports/1/link_layer", "InfiniBand\n");
    put(IB "/ports/1/lid", "0x12\n");
    put(IB "/ports/1/rate", "100 Gb/sec (4X EDR)\n");
}

static void partitions(void **state)
{
    put_infiniband();
    look(true);
    assert_null(found_on("rdma-pkey", NULL)); /* no table */
    put(IB "/ports/1/pkeys/0", "0xffff\n");
    look(true);
    check_finding("rdma-pkey", "mlx5_0:1", DOCTOR_OK, "full member of partition 0x7fff");
    put(IB "/ports/1/pkeys/0", "0x8001\n");
    look(true);
    check_finding("rdma-pkey", "mlx5_0:1", DOCTOR_OK, "full member of partition 0x0001");
    put(IB "/ports/1/pkeys/0", "0x7fff\n");
    look(true);
    check_finding("rdma-pkey", "mlx5_0:1", DOCTOR_WARN, "limited member of partition 0x7fff");
    static const char *const invalid[] = {"0x0000\n", "0x8000\n", "nonsense\n"};
    for (size_t i = 0; i < sizeof invalid / sizeof invalid[0]; i++) {
        put(IB "/ports/1/pkeys/0", invalid[i]);
        look(true);
        check_finding("rdma-pkey", "mlx5_0:1", DOCTOR_BROKEN, "no partition in the first entry");
    }
}

static void subnets_of_infiniband(void **state)
{
    put_infiniband();
    put(IB "/ports/1/gids/0", "fec0:0000:0000:0001:e41d:2d03:0067:1e91\n");
    put(IB "/device/net/ib0/ifindex", "4\n");
    put("/sys/class/net/ib0/type", "32\n");
    put("/sys/class/net/ib0/dev_port", "0\n");
    put("/sys/class/net/ib0/mode", "datagram\n");
    put("/sys/class/net/ib0/mtu", "2044\n");
    look(true);
    check_finding("rdma-gid", "mlx5_0:1", DOCTOR_OK, "fec0:0000:0000:0001: all hosts");
    check_finding("rdma-mtu", "mlx5_0:1", DOCTOR_WARN, "packets of the fabric have 2048 bytes");
    assert_non_null(strstr(found_on("rdma-mtu", NULL)->advice, "mtu=5"));
    put("/sys/class/net/ib0/mtu", "4092\n");
    look(true);
    check_finding("rdma-mtu", "mlx5_0:1", DOCTOR_OK, "4096");
    put("/sys/class/net/ib0/dev_port", "1\n"); /* of another port */
    look(true);
    assert_null(found_on("rdma-mtu", NULL));
    put("/sys/class/net/ib0/dev_port", "0\n");
    put("/sys/class/net/ib0/mode", "connected\n"); /* its MTU is not that of packets */
    look(true);
    assert_null(found_on("rdma-mtu", NULL));
    put(IB "/ports/1/gids/0", "0000:0000:0000:0000:0000:0000:0000:0000\n");
    look(true);
    check_finding("rdma-gid", "mlx5_0:1", DOCTOR_BROKEN, "has no GID");
}

static void classes_of_service(void **state)
{
    put_all(roce_machine);
    look(true);
    check_finding("rdma-class", "mlx5_0:1", DOCTOR_NOTE, "traffic class 0");
    put(IB "/tc/1/traffic_class", "Global tclass=106\n");
    look(true);
    check_finding("rdma-class", "mlx5_0:1", DOCTOR_OK, "traffic class 106 (DSCP 26)");
    put(IB "/tc/1/traffic_class", "Global tclass=0\n");
    look(true);
    check_finding("rdma-class", "mlx5_0:1", DOCTOR_NOTE, "traffic class 0");
    put_infiniband();
    put(IB "/ports/1/sm_sl", "3\n");
    look(true);
    check_finding("rdma-class", "mlx5_0:1", DOCTOR_OK, "the subnet manager uses 3");
}

static void rails_of_a_host(void **state)
{
    put_all(roce_machine);
    look(true);
    assert_null(found_on("rdma-rails", NULL)); /* one port */
    put("/sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n");
    put("/sys/class/infiniband/mlx5_1/ports/1/link_layer", "Ethernet\n");
    put("/sys/class/infiniband/mlx5_1/ports/1/rate", "100 Gb/sec (4X EDR)\n");
    look(true);
    assert_null(found_on("rdma-rails", NULL)); /* the second is down */
    put("/sys/class/infiniband/mlx5_1/ports/1/state", "4: ACTIVE\n");
    look(true);
    check_finding("rdma-rails", "machine", DOCTOR_NOTE, "2 equal active ports");
    put("/sys/class/infiniband/mlx5_1/ports/1/rate", "25 Gb/sec (1X EDR)\n");
    look(true);
    check_finding("rdma-rails", "machine", DOCTOR_WARN,
                  "mlx5_0:1 has 100 Gbit/s, mlx5_1:1 has 25 Gbit/s; each rail");
    put("/sys/class/infiniband/mlx5_1/ports/1/rate", "100 Gb/sec (4X EDR)\n");
    put("/sys/class/infiniband/mlx5_1/ports/1/link_layer", "InfiniBand\n");
    look(true);
    check_finding("rdma-rails", "machine", DOCTOR_WARN, "InfiniBand and Ethernet");
}

static void counters_above_their_limits(void **state)
{
    static const struct {
        const char *file, *value, *id, *text, *advice;
        enum doctor_level level;
    } cases[] = {
        {"counters/symbol_error", "11", "rdma-link-errors", "symbol_error 11", "cable", DOCTOR_WARN},
        {"counters/link_downed", "4", "rdma-link-errors", "link_downed 4", "cable", DOCTOR_WARN},
        {"counters/port_rcv_errors", "1", "rdma-link-errors", "port_rcv_errors 1", "cable", DOCTOR_WARN},
        {"counters/port_xmit_discards", "9", "rdma-loss", "port_xmit_discards 9", "PFC", DOCTOR_WARN},
        {"hw_counters/packet_seq_err", "5", "rdma-loss", "packet_seq_err 5", "PFC", DOCTOR_WARN},
        {"counters/port_rcv_constraint_errors", "2", "rdma-partition-errors", "port_rcv_constraint_errors 2",
         "partition", DOCTOR_WARN},
        {"counters/port_xmit_wait", "7", "rdma-congestion", "port_xmit_wait 7", "weft bench fleet",
         DOCTOR_NOTE},
        {"hw_counters/np_cnp_sent", "3", "rdma-congestion", "np_cnp_sent 3", "weft bench fleet", DOCTOR_NOTE},
    };
    put_all(roce_machine);
    put(IB "/ports/1/counters/symbol_error", "10\n"); /* at the limit */
    put(IB "/ports/1/counters/link_downed", "3\n");
    put(IB "/ports/1/counters/port_rcv_errors", "N/A (no PMA)\n");
    look(true);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_finding(cases[i].id, "mlx5_0:1", DOCTOR_OK, "counters in order");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char path[160];
        snprintf(path, sizeof path, IB "/ports/1/%s", cases[i].file);
        put(path, cases[i].value);
        look(true);
        check_finding(cases[i].id, "mlx5_0:1", cases[i].level, cases[i].text);
        assert_non_null(strstr(found_on(cases[i].id, "mlx5_0:1")->advice, cases[i].advice));
        put(path, "0\n");
    }
    put(IB "/ports/1/counters/port_xmit_discards", "18446744073709551615\n"); /* more than a counter holds */
    look(true);
    check_finding("rdma-loss", "mlx5_0:1", DOCTOR_OK, "counters in order");
}

static void errors_that_rise_are_named(void **state)
{
    put_all(roce_machine);
    put(IB "/ports/1/counters/symbol_error", "5\n");
    put(IB "/ports/1/counters/port_xmit_wait", "5\n");
    struct doctor_counters *before = doctor_counters_read(root);
    assert_non_null(before);
    doctor_report_free(&report);
    doctor_check_rise(&report, before);
    assert_int_equal(report.count, 0);
    put(IB "/ports/1/counters/symbol_error", "7\n"); /* below the limit of rdma-link-errors */
    put(IB "/ports/1/counters/port_xmit_wait", "500\n");
    put(IB "/ports/1/counters/port_rcv_constraint_errors", "1\n"); /* the last of all groups */
    doctor_check_rise(&report, before);
    check_finding("rdma-rise", "mlx5_0:1", DOCTOR_WARN, "symbol_error by 2, port_rcv_constraint_errors by 1");
    assert_int_equal(report.count, 1);
    free(before);
    doctor_check_rise(&report, NULL);
    assert_int_equal(report.count, 1);
}

static void hosts_that_differ(void **state)
{
    static const struct {
        const char *id, *subject, *text;
    } rows[] = {
        {"rdma-mtu", "mlx5_0:1", "network device eth2 has MTU 9000: path MTU 4096"},
        {"rdma-pkey", "mlx5_0:1", "full member of partition 0x7fff"},
        {"rdma-class", "mlx5_0:1", "the driver sets traffic class 106 (DSCP 26) for all queue pairs"},
        {"rdma-mtu", "nodeb: mlx5_1:1", "network device ens5 has MTU 4200: path MTU 4096"},
        {"rdma-pkey", "nodeb: mlx5_1:1", "full member of partition 0x0001"},
    };
    for (size_t i = 0; i < 5; i++)
        doctor_add_finding(&report, DOCTOR_OK, rows[i].id, rows[i].subject, NULL, "%s", rows[i].text);
    doctor_compare_hosts(&report, "nodeb", 3, 3);
    assert_int_equal(report.count, 6);
    check_finding("rdma-differs", "nodeb", DOCTOR_WARN,
                  "rdma-pkey: here full member of partition 0x7fff; there full member of partition 0x0001");
    assert_true(report.findings[5].advice[0] != 0);
    doctor_compare_hosts(&report, "nodec", 3, 6); /* it has no finding of these */
    assert_int_equal(report.count, 6);
    doctor_compare_hosts(&report, "nodeb", 0, 3); /* this host has none */
    assert_int_equal(report.count, 6);
}

static void order_of_packets(void **state)
{
    put_all(roce_machine);
    look(true);
    check_finding("rdma-routing", "mlx5_0:1", DOCTOR_OK, "no packet has overtaken another");
    put(IB "/ports/1/hw_counters/out_of_sequence", "1000\n");
    look(true);
    check_finding("rdma-routing", "mlx5_0:1", DOCTOR_NOTE, "routes adaptively");
    put(IB "/ports/1/hw_counters/packet_seq_err", "20\n");
    look(true);
    check_finding("rdma-routing", "mlx5_0:1", DOCTOR_WARN, "20 requests to send packets again");
}

static void emulated_devices_are_noted(void **state)
{
    put_all(roce_machine);
    look(true);
    assert_null(found_on("rdma-emulated", NULL));
    put(IB "/parent", "eth2\n");
    look(true);
    check_finding("rdma-emulated", "mlx5_0", DOCTOR_NOTE, "by the kernel over eth2");
}

static void a_device_that_may_not_be_opened_is_broken(void **state)
{
    char path[1024];
    put_all(roce_machine);
    snprintf(path, sizeof path, "%s/dev/infiniband/uverbs0", root);
    assert_int_equal(unlink(path), 0);
    look(true);
    check_finding("rdma-access", "mlx5_0", DOCTOR_BROKEN, "/dev/infiniband/uverbs0");
    snprintf(path, sizeof path, "%s/sys/class/infiniband_verbs/uverbs0/ibdev", root);
    assert_int_equal(unlink(path), 0);
    look(true);
    check_finding("rdma-access", "mlx5_0", DOCTOR_BROKEN, "ib_uverbs");
}

static void yama_scopes(void **state)
{
    static const char *const words[] = {"may read each other", "descendants", "administrators", "no process"};
    look(false);
    check_finding("ptrace-scope", NULL, DOCTOR_OK, "no Yama");
    for (int scope = 0; scope < 4; scope++) {
        char text[8];
        snprintf(text, sizeof text, "%d\n", scope);
        put("/proc/sys/kernel/yama/ptrace_scope", text);
        look(false);
        check_finding("ptrace-scope", NULL, scope ? DOCTOR_WARN : DOCTOR_OK, words[scope]);
    }
}

static void little_memory_is_noted_where_nothing_needs_it(void **state)
{
    put("/proc/self/limits", "Max locked memory  65536  65536  bytes\n");
    look(false);
    check_finding("memlock", NULL, DOCTOR_NOTE, "only 64 KiB");
    look(true);
    check_finding("memlock", NULL, DOCTOR_BROKEN, "only 64 KiB");
    put("/proc/self/limits", "Max locked memory  1073741824  1073741824  bytes\n");
    look(true);
    check_finding("memlock", NULL, DOCTOR_OK, "1024 MiB");
}

static void shared_memory_and_huge_pages(void **state)
{
    put("/proc/self/mounts", "proc /proc proc rw 0 0\nshm /dev/shm tmpfs rw,nosuid,size=65536k 0 0\n");
    put("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
    put("/sys/kernel/mm/transparent_hugepage/shmem_enabled",
        "always within_size advise [never] deny force\n");
    put("/proc/meminfo", "MemTotal: 1 kB\nHugePages_Total:       0\n");
    look(false);
    check_finding("shm-size", NULL, DOCTOR_WARN, "only 64 MiB");
    check_finding("huge-pages", NULL, DOCTOR_WARN, "neither");
    check_finding("huge-pages-shared", NULL, DOCTOR_NOTE, "never");
    put("/proc/self/mounts", "tmpfs /dev/shm tmpfs rw,nosuid 0 0\n");
    put("/proc/meminfo", "HugePages_Total:      12\n");
    put("/sys/kernel/mm/transparent_hugepage/shmem_enabled",
        "always within_size [advise] never deny force\n");
    look(false);
    check_finding("shm-size", NULL, DOCTOR_OK, "half");
    check_finding("huge-pages", NULL, DOCTOR_OK, "reserved: 12");
    check_finding("huge-pages-shared", NULL, DOCTOR_OK, "advise");
    put("/proc/self/mounts", "proc /proc proc rw 0 0\n");
    look(false);
    check_finding("shm-size", NULL, DOCTOR_NOTE, "not mounted");
}

static void the_network_as_files(void **state)
{
    static const struct file files[] = {
        {"/sys/class/net/lo/mtu", "65536\n"},
        {"/sys/class/net/eth0/device/vendor", "0x8086\n"},
        {"/sys/class/net/eth0/mtu", "1500\n"},
        {"/sys/class/net/eth0/speed", "25000\n"},
        {"/sys/class/net/eth0/operstate", "up\n"},
        {"/sys/class/net/eth1/device/vendor", "0x8086\n"},
        {"/sys/class/net/eth1/mtu", "1500\n"},
        {"/sys/class/net/eth1/speed", "-1\n"},
        {"/sys/class/net/eth1/operstate", "down\n"},
        {"/sys/class/net/eth3/device/vendor", "0x8086\n"},
        {"/sys/class/net/eth3/mtu", "1500\n"},
        {"/sys/class/net/eth3/speed", "1000\n"},
        {"/sys/class/net/eth3/operstate", "up\n"},
        {"/proc/sys/net/ipv4/tcp_congestion_control", "bbr\n"},
        {"/proc/sys/net/ipv4/tcp_available_congestion_control", "reno bbr cubic\n"},
        {"/proc/sys/net/ipv4/tcp_rmem", "4096 131072 6291456\n"},
        {"/proc/sys/net/ipv4/tcp_wmem", "4096 16384 212992\n"},
        {"/proc/modules", "xfs 1 0 - Live 0x0\nnf_tables 356352 231 nft_ct, Live 0x0\n"},
        {NULL, NULL},
    };
    put_all(files);
    look(false);
    check_finding("net-mtu", "eth0", DOCTOR_WARN, "25000 Mbit/s");
    check_finding("net-device", "eth1", DOCTOR_NOTE, "down");
    check_finding("net-mtu", "eth3", DOCTOR_NOTE, "1000 Mbit/s");
    assert_null(found_on("net-mtu", "lo"));
    assert_null(found_on("loopback", "lo")); /* the tree does not have its flags */
    put("/sys/class/net/lo/flags", "0x8\n");
    look(false);
    check_finding("loopback", "lo", DOCTOR_BROKEN, "is down");
    put("/sys/class/net/lo/flags", "0x9\n");
    look(false);
    check_finding("loopback", "lo", DOCTOR_OK, "is up");
    check_finding("congestion-control", "bbr", DOCTOR_WARN, "half speed");
    check_finding("tcp-buffers", NULL, DOCTOR_WARN, "208 KiB");
    check_finding("firewall", NULL, DOCTOR_NOTE, "nf_tables");
    put("/proc/sys/net/ipv4/tcp_congestion_control", "cubic\n");
    put("/proc/sys/net/ipv4/tcp_wmem", "4096 16384 33554432\n");
    put("/proc/modules", "xfs 1 0 - Live 0x0\nmy_nf_tables 1 0 - Live 0x0\n");
    look(false);
    check_finding("congestion-control", "cubic", DOCTOR_OK, "fine");
    check_finding("tcp-buffers", NULL, DOCTOR_OK, "6144 KiB");
    check_finding("firewall", NULL, DOCTOR_OK, "no packet filter");
    char path[512];
    snprintf(path, sizeof path, "%s/proc/modules", root);
    assert_int_equal(unlink(path), 0);
    look(false);
    check_finding("firewall", NULL, DOCTOR_NOTE, "cannot be seen");
}

static void accelerators_and_clocks(void **state)
{
    put_all(roce_machine);
    put("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.1\n");
    put("/proc/sys/kernel/osrelease", "6.1.0-18-amd64\n");
    put("/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n");
    look(false);
    check_finding("gpu-memory", NULL, DOCTOR_WARN, "neither dma-buf nor nvidia_peermem");
    check_finding("clock-source", "hpet", DOCTOR_WARN, "system call");
    put("/sys/module/nvidia_peermem/refcnt", "0\n");
    put("/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n");
    look(false);
    check_finding("gpu-memory", NULL, DOCTOR_OK, "nvidia_peermem");
    check_finding("clock-source", "tsc", DOCTOR_OK, "without");
    put("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560\n");
    look(false);
    check_finding("gpu-memory", NULL, DOCTOR_OK, "dma-buf");
}

static void lists_of_processors(void **state)
{
    assert_true(machine_in_list("0-3,8", 2));
    assert_true(machine_in_list("0-3,8", 8));
    assert_false(machine_in_list("0-3,8", 5));
    assert_false(machine_in_list("", 0));
    assert_false(machine_in_list("nonsense", 0));
    assert_true(machine_in_list("7", 7));
}

static void targets_are_read_as_people_write_them(void **state)
{
    static const struct {
        const char *target, *host, *port;
    } good[] = {
        {"node1", "node1", ""},     {"node1:99", "node1", "99"},       {"10.0.0.1:4747", "10.0.0.1", "4747"},
        {"fe80::1", "fe80::1", ""}, {"[fe80::1]:80", "fe80::1", "80"}, {"[fe80::1]", "fe80::1", ""},
    };
    char host[64], port[16];
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_true(doctor_parse_target(good[i].target, host, sizeof host, port, sizeof port));
        assert_string_equal(host, good[i].host);
        assert_string_equal(port, good[i].port);
    }
    static const char *const bad[] = {"", ":80", "[fe80::1", "node:1234567", "node:"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(doctor_parse_target(bad[i], host, sizeof host, port, sizeof port));
}

static void texts_of_machines_stay_on_one_line(void **state)
{
    doctor_add_finding(&report, DOCTOR_NOTE, "x", "a\nb", "c\033[31m", "%s", "d\re");
    assert_string_equal(report.findings[0].subject, "a b");
    assert_string_equal(report.findings[0].text, "d e");
    assert_null(strchr(report.findings[0].advice, '\033'));
}

int main(void)
{
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(an_empty_machine_is_noted_and_not_broken),
        CASE(a_good_roce_machine_is_in_order),
        CASE(faults_of_rdma_are_named),
        CASE(ordinary_users_see_64_bytes_of_a_card),
        CASE(a_broken_list_of_capabilities_ends),
        CASE(ports_that_are_down_say_what_to_do),
        CASE(roce_needs_a_routable_gid),
        CASE(infiniband_ports_with_and_without_lid),
        CASE(partitions),
        CASE(subnets_of_infiniband),
        CASE(classes_of_service),
        CASE(rails_of_a_host),
        CASE(counters_above_their_limits),
        CASE(errors_that_rise_are_named),
        CASE(hosts_that_differ),
        CASE(order_of_packets),
        CASE(emulated_devices_are_noted),
        CASE(a_device_that_may_not_be_opened_is_broken),
        CASE(yama_scopes),
        CASE(little_memory_is_noted_where_nothing_needs_it),
        CASE(shared_memory_and_huge_pages),
        CASE(the_network_as_files),
        CASE(accelerators_and_clocks),
        CASE(lists_of_processors),
        CASE(targets_are_read_as_people_write_them),
        CASE(texts_of_machines_stay_on_one_line),
    };
    return cmocka_run_group_tests_name("doctor", tests, NULL, NULL);
}
