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

/// By the values of MUONRT_SYMMETRIC_*.
constexpr std::array<const char*, 4> kSymmetric = {"default", "vendor", "sm80", "sm90"};

template <size_t count>
CLI::Validator one_of(const std::array<const char*, count>& words) {
  return CLI::IsMember(std::vector<std::string>(words.begin(), words.end()));
}
template <size_t count>
int32_t index_of(const std::array<const char*, count>& words, const std::string& word) {
  return static_cast<int32_t>(std::find(words.begin(), words.end(), word) - words.begin());
}

}  // namespace

void add_link_options(CLI::App& command, RunDevice& where) {
  command.add_option("--device", where.device, "host or cuda; ranks take the GPUs in turn")
      ->check(CLI::IsMember({"host", "cuda"}))
      ->capture_default_str();
  command
      .add_option("--link", where.link,
                  "between GPUs: staged (copies, under mpirun through host memory; several ranks "
                  "may share a GPU) or nccl")
      ->check(CLI::IsMember({"staged", "nccl"}))
      ->capture_default_str();
  command
      .add_option("--timeout", where.timeout,
                  "seconds that a rank may keep others waiting; then all end with an error")
      ->check(number_between(1e-3, 1e6))
      ->capture_default_str();
}

void add_run_device_options(CLI::App& command, RunDevice& where) {
  add_link_options(command, where);
  command.add_flag("--portable", where.portable, "plain products in place of the library's: slow");
  command.add_flag("--graphs", where.graphs, "GPU: Newton-Schulz replayed from CUDA graphs");
  command
      .add_option("--symmetric", where.symmetric,
                  "GPU: symmetric products by default, vendor, sm80 or sm90")
      ->check(one_of(kSymmetric))
      ->capture_default_str();
}

void set_device(muonrt_optimizer_options_t& options, const RunDevice& where, int rank) {
  options.device = where.cuda() ? MUONRT_DEVICE_CUDA : MUONRT_DEVICE_HOST;
  options.device_index = where.cuda() ? gpu_of(rank) : 0;
  options.portable_gemm = where.portable;
  options.graphs = where.graphs;
  options.symmetric = index_of(kSymmetric, where.symmetric);
  options.timeout_ms = milliseconds(where.timeout);
}

int on_device(Comm& comm, const RunDevice& where, const std::function<int(Comm&)>& work) {
  if (!where.cuda()) return work(comm);
  const int gpu = gpu_of(comm.rank());
  use_gpu(gpu);
  muonrt_nccl_options_t nccl;
  muonrt_nccl_options_init(&nccl);
  nccl.device_index = gpu;
  Comm between = where.link == "nccl" ? Comm::nccl(comm, nccl) : Comm::staged(comm, gpu);
  return work(between);
}

}  // namespace muonrt::tool
