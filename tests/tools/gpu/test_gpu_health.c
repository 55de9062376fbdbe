/* test_gpu_health.c - health of GPUs from a fake NVML and a kernel log made of a file: values, metrics, the
 * findings of doctor, and an NVML that fails, blocks or dies. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/lib/temp_dir.h"
#include "tools/doctor/machine.h"
#include "tools/gpu/health.h"
#include "tools/gpu/xid.h"

static struct gpu_health health;

static void read_as(const char *mode, uint32_t deadline_ms)
{
    setenv("WEFT_NVML", FAKE_NVML, 1);
    setenv("FAKE_NVML", mode, 1);
    gpu_health_read(&health, "", deadline_ms);
}

static void values_of_each_device(void **state)
{
    read_as("healthy", 5000);
    assert_true(health.has_nvml);
    assert_int_equal(health.count, 3);
    assert_string_equal(health.devices[0].name, "Fake \"H100\"");
    assert_string_equal(health.devices[0].pci, "0000:3a:00.0");
    assert_string_equal(health.devices[1].pci, "0000:3b:00.0");
    assert_int_equal(health.devices[0].counters[GPU_ECC_CORRECTED], 0);
    assert_int_equal(health.devices[1].counters[GPU_ECC_CORRECTED], 7);
    assert_int_equal(health.devices[1].counters[GPU_ROWS_CORRECTED], 1);
    assert_int_equal(health.devices[1].counters[GPU_REMAP_PENDING], 1);
    assert_int_equal(health.devices[1].counters[GPU_PCIE_REPLAYS], 5000000000ull);
    assert_true(health.devices[2].counters[GPU_ECC_UNCORRECTED] == GPU_UNKNOWN); /* no ECC */
    assert_int_equal(health.devices[2].counters[GPU_REMAP_FAILED], 0);
    read_as("failed", 5000);
    assert_int_equal(health.devices[0].counters[GPU_ECC_UNCORRECTED], 2);
    assert_int_equal(health.devices[1].counters[GPU_REMAP_FAILED], 1);
    assert_false(health.devices[1].is_lost);
    assert_true(health.devices[2].is_lost);
}

static void an_nvml_that_does_not_work(void **state)
{
    read_as("refuses", 5000);
    assert_false(health.has_nvml);
    assert_string_equal(health.text, "NVML answers: Driver Not Loaded");
    read_as("blocks", 100);
    assert_false(health.has_nvml);
    assert_true(health.is_silent);
    assert_string_equal(health.text, "NVML did not answer in time");
    read_as("dies", 5000);
    assert_false(health.has_nvml || health.is_silent);
    assert_string_equal(health.text, "NVML ended its process");
    setenv("WEFT_NVML", "/nowhere/libnvidia-ml.so", 1);
    gpu_health_read(&health, "", 5000);
    assert_string_equal(health.text, "/nowhere/libnvidia-ml.so cannot be loaded");
    setenv("WEFT_NVML", "libm.so.6", 1);
    gpu_health_read(&health, "", 5000);
    assert_string_equal(health.text, "libm.so.6 has no nvmlInit_v2");
}

static void the_table_is_sorted(void **state)
{
    const struct xid_entry *entry = NULL, *before = NULL;
    size_t count = 0;
    for (; (entry = xid_at(count)); before = entry, count++) {
        if (before) assert_true(before->xid < entry->xid);
        assert_ptr_equal(xid_find(entry->xid), entry);
    }
    assert_true(count > 10);
    assert_int_equal(xid_find(79)->action, XID_DRAIN_NOW);
    assert_int_equal(xid_find(63)->action, XID_DRAIN_LATER);
    assert_int_equal(xid_find(31)->action, XID_IGNORE);
    assert_null(xid_find(1));
}

static void lines_of_the_kernel_log(void **state)
{
    memset(&health, 0, sizeof health);
    gpu_xid_scan(&health, "4,1,1,-;NVRM: Xid (PCI:0000:3B:00): 79, pid=1, GPU has fallen off the bus.");
    gpu_xid_scan(&health, "4,2,1,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=2");
    gpu_xid_scan(&health, "4,3,1,-;NVRM: Xid (PCI:0000:3b:00): 13, pid=2");
    gpu_xid_scan(&health, "4,4,1,-;NVRM: Xid (PCI:0000:5d:00): 79, pid=2");
    assert_int_equal(health.xid_count, 3);
    assert_string_equal(health.xids[0].pci, "0000:3b:00");
    assert_int_equal(health.xids[0].xid, 79);
    assert_int_equal(health.xids[0].count, 2);
    assert_int_equal(health.xids[1].xid, 13);
    static const char *const others[] = {
        "NVRM: Xid (PCI:0000:3b:00",     "NVRM: Xid (PCI:): 5",
        "NVRM: Xid (PCI:0000:3b:00): x", "NVRM: Xid (PCI:0000:3b:00) 5",
        "NVRM: Xid (PCI:\"0\"): 5",      "NVRM: Xid (PCI:0000:3b:00): 99999999999999999999999"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) gpu_xid_scan(&health, others[i]);
    assert_int_equal(health.xid_count, 3);
}

static void a_kernel_log_of_many_records(void **state)
{
    char *root = temp_dir_make(), path[512];
    assert_non_null(root);
    snprintf(path, sizeof path, "%s/dev", root);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/dev/kmsg", root);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; i < 1000; i++)
        fprintf(file,
                "6,%d,1,-;a line of another module, %d\n4,%d,1,-;NVRM: Xid (PCI:0000:3b:00): 94, pid=%d\n", i,
                i, i, i);
    fclose(file);
    gpu_health_read(&health, root, 5000);
    assert_false(health.has_nvml); /* the files of another machine */
    assert_true(health.has_log);
    assert_int_equal(health.xid_count, 1);
    assert_int_equal(health.xids[0].count, 1000);
    temp_dir_remove(root);
}

static char *metrics_text(void)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    gpu_metrics_print(&health, out);
    fclose(out);
    return text;
}

static void metrics_have_a_sample_for_each_known_value(void **state)
{
    read_as("healthy", 5000);
    gpu_xid_scan(&health, "NVRM: Xid (PCI:0000:3b:00): 48, pid=2");
    gpu_xid_scan(&health, "NVRM: Xid (PCI:0000:3b:00): 7, pid=2");
    health.has_log = true;
    char *text = metrics_text();
    static const char *const wanted[] = {
        "weft_gpu_nvml_up 1\n",
        "weft_gpu_up{gpu=\"1\",pci=\"0000:3b:00.0\",name=\"Fake 'H100'\"} 1\n",
        "weft_gpu_ecc_corrected_total{gpu=\"1\",pci=\"0000:3b:00.0\"} 7\n",
        "weft_gpu_row_remap_pending{gpu=\"1\",pci=\"0000:3b:00.0\"} 1\n",
        "weft_gpu_pcie_replays_total{gpu=\"0\",pci=\"0000:3a:00.0\"} 5000000000\n",
        "weft_gpu_xid_total{pci=\"0000:3b:00\",xid=\"48\",action=\"drain_now\"} 1\n",
        "weft_gpu_xid_total{pci=\"0000:3b:00\",xid=\"7\",action=\"unknown\"} 1\n",
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (!strstr(text, wanted[i])) fail_msg("%s is not in\n%s", wanted[i], text);
    assert_null(strstr(text, "weft_gpu_ecc_uncorrected_total{gpu=\"2\"")); /* no ECC */
    free(text);
    read_as("refuses", 5000);
    text = metrics_text();
    assert_non_null(strstr(text, "weft_gpu_nvml_up 0\n"));
    assert_null(strstr(text, "weft_gpu_up{"));
    free(text);
}

static void expect(const struct doctor_report *report, const char *id, const char *subject,
                   enum doctor_level level, const char *words)
{
    for (size_t i = 0; i < report->count; i++) {
        const struct doctor_finding *finding = &report->findings[i];
        if (strcmp(finding->id, id) != 0 || strcmp(finding->subject, subject) != 0) continue;
        assert_int_equal(finding->level, level);
        assert_non_null(strstr(finding->text, words));
        assert_true(level == DOCTOR_OK || finding->advice[0]);
        return;
    }
    fail_msg("no finding %s of %s", id, subject);
}

static void findings_of_doctor(void **state)
{
    struct doctor_report report = {0};
    read_as("failed", 5000);
    gpu_xid_scan(&health, "NVRM: Xid (PCI:0000:3b:00): 63, pid=2");
    gpu_xid_scan(&health, "NVRM: Xid (PCI:0000:3c:00): 79, pid=2");
    health.has_log = true;
    doctor_check_gpu_health(&report, &health);
    expect(&report, "gpu-ecc", "GPU 0", DOCTOR_BROKEN, "2 uncorrected memory errors");
    expect(&report, "gpu-remap", "GPU 1", DOCTOR_BROKEN, "could not be remapped");
    expect(&report, "gpu-lost", "GPU 2", DOCTOR_BROKEN, "lost");
    expect(&report, "gpu-xid", "0000:3b:00", DOCTOR_WARN, "Xid 63, 1 times");
    expect(&report, "gpu-xid", "0000:3c:00", DOCTOR_BROKEN, "fallen off the bus");
    doctor_report_free(&report);
    read_as("healthy", 5000);
    health.has_log = true;
    doctor_check_gpu_health(&report, &health);
    expect(&report, "gpu-ecc", "GPU 0", DOCTOR_OK, "no uncorrected memory errors");
    expect(&report, "gpu-remap", "GPU 1", DOCTOR_WARN, "waits for its remapping");
    expect(&report, "gpu-ecc", "GPU 2", DOCTOR_OK, "no ECC");
    assert_int_equal(report.count, 4);
    doctor_report_free(&report);
    read_as("blocks", 50);
    doctor_check_gpu_health(&report, &health);
    expect(&report, "gpu-nvml", "nvidia", DOCTOR_BROKEN, "did not answer in time");
    doctor_report_free(&report);
    doctor_check_gpus(&report, "/nowhere"); /* no driver: nothing to report */
    assert_int_equal(report.count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_of_each_device),
        cmocka_unit_test(an_nvml_that_does_not_work),
        cmocka_unit_test(the_table_is_sorted),
        cmocka_unit_test(lines_of_the_kernel_log),
        cmocka_unit_test(a_kernel_log_of_many_records),
        cmocka_unit_test(metrics_have_a_sample_for_each_known_value),
        cmocka_unit_test(findings_of_doctor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
