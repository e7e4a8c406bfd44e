#include <CLI/CLI.hpp>
#include <algorithm>

#include "backend/cuda_device.hpp"
#include "command/bench/bench_device.hpp"
#include "command/bench/bench_tune.hpp"
#include "command/bench/fastest_products.hpp"
#include "host/host_device.hpp"

namespace muonrt::tool {

namespace {

std::vector<Provider> all_providers(const DeviceArguments& where, bool best) {
  const int index = where.index, threads = where.threads;
  if (where.device == "cuda") {
    // Able to record; what is not recorded is enqueued as by any device.
    const auto with = [=, reserved = where.reserved_sms](CudaSettings settings) {
      settings.graphs = true;
      settings.reserved_sms = reserved;
      return [=] { return make_cuda_device(index, settings); };
    };
    // The library's default is one of these: nothing is measured twice.
    std::vector<Provider> out = {
        {"cublaslt", with({.symmetric = SymmetricProvider::kVendor})},
        {"sm80", with({.symmetric = SymmetricProvider::kSm80})},
        {"sm90", with({.symmetric = SymmetricProvider::kSm90, .sm90 = read_tuning(where.tune)})},
        {"naive", with({.naive_products = true}), true}};
    if (best) {
      const CudaSettings settings{.make_products = make_fastest_products,
                                  .symmetric = SymmetricProvider::kVendor};
      out.insert(out.begin() + 1, Provider{"cublaslt-best", with(settings), false, true});
    }
    return out;
  }
  const auto with = [=](bool portable) {
    return [=] { return host::make_host_device({threads, portable}); };
  };
  return {{"onednn", with(false)}, {"portable", with(true), true}};
}

}  // namespace

std::vector<Provider> providers(const DeviceArguments& where, bool best) {
  std::vector<Provider> out, all = all_providers(where, best);
  std::vector<std::string> unknown = where.providers;
  std::string names;
  for (const Provider& provider : all) {
    names += (names.empty() ? "" : ", ") + provider.name;
    if (where.providers.empty() || std::erase(unknown, provider.name) > 0) out.push_back(provider);
  }
  if (!unknown.empty())
    throw CLI::ValidationError("--providers", "there is no " + unknown.front() + " on " +
                                                  where.device + "; there are " + names);
  return out;
}

std::vector<Provider> present_providers(BenchReport& report, bool best) {
  std::vector<Provider> out;
  std::string why_not;
  for (const Provider& provider : providers(report.arguments(), best)) {
    try {
      provider.make();
      out.push_back(provider);
    } catch (const Error& error) {
      if (error.status() != Status::kNotSupported && error.status() != Status::kDevice) throw;
      report.leave_out(provider.name, error.message());
      why_not = error.message();
    }
  }
  if (out.empty()) throw Error(Status::kNotSupported, "there is no provider: " + why_not);
  return out;
}

}  // namespace muonrt::tool
