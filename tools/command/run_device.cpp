#include "command/run_device.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>

#include "command/gpu.hpp"
#include "command/launch.hpp"
#include "command/validators.hpp"
#include "muonrt/nccl.h"

namespace muonrt::tool {

namespace {

/// The names of the values of MUONRT_SYMMETRIC_*, in the order of these values.
constexpr std::array<const char*, 3> kSymmetric = {"default", "vendor", "sm90"};

template <size_t count>
CLI::Validator one_of(const std::array<const char*, count>& words) {
  return CLI::IsMember(std::vector<std::string>(words.begin(), words.end()));
}
template <size_t count>
int32_t index_of(const std::array<const char*, count>& words, const std::string& word) {
  return static_cast<int32_t>(std::find(words.begin(), words.end(), word) - words.begin());
}

}  // namespace

void add_gpu_comm_options(CLI::App& command, RunDevice& where) {
  with_default(command, "--device", where.device,
               "host or cuda; rank r uses GPU r modulo the number of GPUs",
               CLI::IsMember({"host", "cuda"}));
  with_default(command, "--gpu-comm", where.gpu_comm,
               "communication between GPUs: staged (copies, under mpirun through host memory; "
               "several ranks may share a GPU) or nccl",
               CLI::IsMember({"staged", "nccl"}));
  with_default(command, "--timeout", where.timeout,
               "seconds that ranks wait for each other; then all exit with an error",
               number_between(1e-3, 1e6));
}

void add_run_device_options(CLI::App& command, RunDevice& where) {
  add_gpu_comm_options(command, where);
  command.add_flag("--portable-gemm", where.portable_gemm,
                   "portable loops instead of the library's matrix products: slow");
  command.add_flag("--graphs", where.graphs, "GPU: replay Newton-Schulz as CUDA graphs");
  command
      .add_option("--symmetric", where.symmetric,
                  "GPU: implementation of symmetric products: default, vendor or sm90")
      ->check(one_of(kSymmetric))
      ->capture_default_str();
}

void set_device(OptimizerOptions& options, const RunDevice& where, int rank) {
  options.general.device = where.cuda() ? MUONRT_DEVICE_CUDA : MUONRT_DEVICE_HOST;
  options.general.device_index = where.cuda() ? gpu_of(rank) : 0;
  options.general.timeout_ms = milliseconds(where.timeout);
  options.tuning.graphs = where.graphs;
  options.tuning.symmetric = index_of(kSymmetric, where.symmetric);
  options.debug.portable_gemm = where.portable_gemm;
}

int on_device(Comm& comm, const RunDevice& where, const std::function<int(Comm&)>& work) {
  if (!where.cuda()) return work(comm);
  const int gpu = gpu_of(comm.rank());
  use_gpu(gpu);
  muonrt_nccl_options_t nccl;
  muonrt_nccl_options_init(&nccl);
  nccl.device_index = gpu;
  Comm between = where.gpu_comm == "nccl" ? Comm::nccl(comm, nccl) : Comm::staged(comm, gpu);
  return work(between);
}

}  // namespace muonrt::tool
