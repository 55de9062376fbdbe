/* ps_lite_push_pull.cc - push, wait, pull, wait of one tensor with ps-lite, for push_pull.py.
 *
 *     ps_lite_push_pull BYTES:ITERATIONS...
 *
 * Worker 0 prints {"bytes":..,"time_us":..} for each size. The server copies a push and sums nothing. */
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "ps/ps.h"

static std::unordered_map<ps::Key, ps::SArray<float>> stored;

static void handle(const ps::KVMeta &meta, const ps::KVPairs<float> &data, ps::KVServer<float> *server)
{
    ps::KVPairs<float> answer;
    ps::SArray<float> &values = stored[data.keys[0]];
    if (meta.push) {
        if (values.size() != data.vals.size()) values.resize(data.vals.size());
        memcpy(values.data(), data.vals.data(), data.vals.size() * sizeof(float));
    } else {
        answer.keys = data.keys;
        answer.vals = values;
        answer.lens = {(int)values.size()};
    }
    server->Response(meta, answer);
}

static void work(ps::KVWorker<float> *worker, int index, size_t bytes, int iterations)
{
    const ps::Key key = ps::Postoffice::Get()->GetServerKeyRanges()[0].begin() + (ps::Key)index;
    const size_t count = bytes / sizeof(float);
    const ps::SArray<ps::Key> keys({key});
    const ps::SArray<int> lens({(int)count});
    ps::SArray<float> values(count, 1.0f), result(count, 0.0f);
    ps::SArray<int> result_lens({(int)count});
    const int warm_up = iterations / 5 + 2;
    std::chrono::steady_clock::time_point began;
    for (int i = -warm_up; i < iterations; i++) {
        if (i == 0) began = std::chrono::steady_clock::now();
        worker->Wait(worker->ZPush(keys, values, lens));
        worker->Wait(worker->ZPull(keys, &result, &result_lens));
    }
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - began;
    if (result[count - 1] != 1.0f) abort();
    if (ps::MyRank() == 0) printf("{\"bytes\":%zu,\"time_us\":%.2f}\n", bytes, took.count() / iterations);
    ps::Postoffice::Get()->Barrier(0, ps::kWorkerGroup);
}

int main(int argc, char **argv)
{
    ps::KVServer<float> *server = nullptr;
    ps::Start(0);
    if (ps::IsServer()) {
        server = new ps::KVServer<float>(0);
        server->set_request_handle(handle);
    }
    ps::Postoffice::Get()->Barrier(0, ps::kWorkerGroup + ps::kServerGroup + ps::kScheduler);
    if (ps::IsWorker()) {
        ps::KVWorker<float> worker(0, 0);
        for (int i = 1; i < argc; i++) {
            char *end;
            const size_t bytes = strtoull(argv[i], &end, 10);
            work(&worker, i, bytes, atoi(end + 1));
        }
    }
    ps::Finalize(0, true);
    delete server;
    return 0;
}
