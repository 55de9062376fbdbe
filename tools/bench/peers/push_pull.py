#!/usr/bin/env python3
"""push_pull of weft and push + pull of ps-lite in turn, over tcp on loopback.

  tools/bench/peers/push_pull.py --build build --ps-lite ps_lite_push_pull --rounds 5

ps-lite: https://github.com/dmlc/ps-lite. In its folder, with libzmq3-dev, libprotobuf-dev and protobuf-compiler:

  protoc --cpp_out=src --proto_path=src src/meta.proto
  g++ -std=c++17 -O3 -w -Isrc -Iinclude src/{customer,postoffice,van}.cc src/meta.pb.cc WEFT/tools/bench/peers/ps_lite_push_pull.cc \\
      -lprotobuf -lzmq -pthread -o ps_lite_push_pull

One shard or server; -n: numbers of workers. Each round runs, size by size, weft and ps-lite directly after each other, each in
processes of its own. The table has the medians in microseconds, and the median of the ratios of the rounds (above 1: weft is
faster), in brackets the smallest and the largest. weft's time has the sum over the workers; the server of ps-lite copies a push.
"""
import argparse
import json
import os
import random
import statistics
import subprocess

import operations

SECONDS = 300


def weft(build, workers, size, iterations):
    words = [os.path.join(build, "tools", "weft"), "bench", "push_pull", "-n", str(workers), "-s", "1", "-b", str(size), "-e", str(size),
             "--iters", str(iterations), "--transport", "tcp", "--json"]
    return operations.time_of(operations.rows_of(words, {}, [])[0])


def ps_lite(program, workers, size, iterations):
    common = {**os.environ, "DMLC_NUM_SERVER": "1", "DMLC_NUM_WORKER": str(workers), "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_NODE_HOST": "127.0.0.1",
              "DMLC_PS_ROOT_PORT": str(random.randrange(20000, 30000))}
    processes = [subprocess.Popen([program, f"{size}:{iterations}"], env={**common, "DMLC_ROLE": role}, stdout=subprocess.PIPE, text=True)
                 for role in ["scheduler", "server"] + ["worker"] * workers]
    try:
        for process in processes:
            if process.wait(SECONDS) != 0:
                raise SystemExit(f"{program} failed")
        lines = [line for process in processes for line in process.stdout.read().splitlines()]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return json.loads(lines[0])["time_us"]


def iterations_of(size):
    return 1000 if size <= 65536 else 100 if size <= 1 << 20 else 6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--ps-lite", required=True, help="program made from ps_lite_push_pull.cc")
    parser.add_argument("-n", default="1,2", help="numbers of workers (default: 1,2)")
    parser.add_argument("--sizes", default="4K,64K,256K,1M,4M,25M,64M")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print("| workers | size | weft (us) | ps-lite (us) | ps-lite over weft |\n|---:|---:|---:|---:|---:|")
    for workers in map(int, arguments.n.split(",")):
        for size in map(operations.parse_size, arguments.sizes.split(",")):
            pairs = [(weft(arguments.build, workers, size, iterations_of(size)), ps_lite(arguments.ps_lite, workers, size, iterations_of(size)))
                     for _ in range(arguments.rounds)]
            ratios = sorted(other / own for own, other in pairs)
            own, other = (statistics.median(times) for times in zip(*pairs))
            print(f"| {workers} | {operations.name_size(size)} | {own:.1f} | {other:.1f} | {statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f}) |",
                  flush=True)


if __name__ == "__main__":
    main()
