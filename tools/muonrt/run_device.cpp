#include "muonrt/run_device.hpp"

#include <CLI/CLI.hpp>

#include "muonrt/gpu.hpp"
#include "muonrt/nccl.h"

namespace muonrt::tool {

void add_run_device_options(CLI::App& command, RunDevice& where) {
  command.add_option("--device", where.device, "host or cuda; ranks take the GPUs in turn")
      ->check(CLI::IsMember({"host", "cuda"}))
      ->capture_default_str();
  command
      .add_option("--link", where.link,
                  "between GPUs: staged (through host memory; several ranks may share one) or nccl")
      ->check(CLI::IsMember({"staged", "nccl"}))
      ->capture_default_str();
  command.add_flag("--portable", where.portable, "plain products in place of the library's: slow");
}

void set_device(muonrt_optimizer_options_t& options, const RunDevice& where, int rank) {
  options.device = where.cuda() ? MUONRT_DEVICE_CUDA : MUONRT_DEVICE_HOST;
  options.device_index = where.cuda() ? gpu_of(rank) : 0;
  options.portable_gemm = where.portable;
}

int on_device(Comm& comm, const RunDevice& where, const std::function<int(Comm&)>& work) {
  if (!where.cuda()) return work(comm);
  const int gpu = gpu_of(comm.rank());
  muonrt_nccl_options_t nccl;
  muonrt_nccl_options_init(&nccl);
  nccl.device_index = gpu;
  Comm between = where.link == "nccl" ? Comm::nccl(comm, nccl) : Comm::staged(comm, gpu);
  return work(between);
}

}  // namespace muonrt::tool
