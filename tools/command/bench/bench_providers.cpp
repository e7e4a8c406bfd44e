#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "backend/cuda_device.hpp"
#include "command/bench/bench_device.hpp"
#include "command/bench/fastest_products.hpp"
#include "host/host_device.hpp"

namespace muonrt::tool {

namespace {

Sm90Tuning read_tuning(const std::vector<std::string>& words) {
  static const std::map<std::string, Tiles> all_tiles = {{"tiles=large", Tiles::kLarge},
                                                         {"tiles=medium", Tiles::kMedium},
                                                         {"tiles=small", Tiles::kSmall},
                                                         {"tiles=wide", Tiles::kSmallWide}};
  Sm90Tuning out;
  std::set<std::string> names;
  for (const std::string& word : words) {
    const std::string name = word.substr(0, word.find('='));
    if (!names.insert(name).second)
      throw CLI::ValidationError("--tune", word + " sets " + name + " a second time");
    int value = 0;
    char rest = 0;
    const auto number = [&](const char* format, int least, int most) {
      return std::sscanf(word.c_str(), format, &value, &rest) == 1 && value >= least &&
             value <= most;
    };
    const auto tiles = all_tiles.find(word);
    if (tiles != all_tiles.end()) {
      out.tiles = tiles->second;
    } else if (number("pairs=%d%c", 0, 1)) {
      out.pairs = value == 1;
    } else if (number("early=%d%c", 0, 1)) {
      out.early = value == 1;
    } else if (number("slices=%d%c", 1, 4) && value != 3) {
      out.slices = value;
    } else if (number("skew=%d%c", 0, 3)) {
      out.skew = value;
    } else if (number("dense=%d%c", 0, 1)) {
      out.dense = value == 1;
    } else if (number("counter=%d%c", 0, 1)) {
      out.counter = value == 1;
    } else if (number("raster=%d%c", 1, 1024)) {
      out.raster = value;
    } else {
      throw CLI::ValidationError("--tune", word + " is not one of " + kTuneHelp);
    }
  }
  return out;
}

std::vector<Provider> all_providers(const DeviceArguments& a, bool best) {
  if (a.device == "host") {
    const auto with = [threads = a.threads](bool portable) {
      return [=] { return host::make_host_device({threads, portable}); };
    };
    return {{"onednn", with(false)}, {"portable", with(true), true}};
  }
  const auto with = [reserved = a.reserved_sms](CudaSettings settings) {
    settings.reserved_sms = reserved;
    return [=] { return make_cuda_device(0, settings); };
  };
  std::vector<Provider> out = {
      {"cublaslt", with({.symmetric = SymmetricProvider::kVendor})},
      {"sm90", with({.symmetric = SymmetricProvider::kSm90, .sm90 = read_tuning(a.tune)})},
      {"naive", with({.naive_products = true}), true}};
  const CudaSettings fastest{.make_products = make_fastest_products,
                             .symmetric = SymmetricProvider::kVendor};
  if (best) out.insert(out.begin() + 1, {"cublaslt-best", with(fastest), false, true});
  return out;
}

}  // namespace

std::vector<Provider> providers(const DeviceArguments& a, bool best) {
  std::vector<Provider> out;
  std::vector<std::string> unknown = a.providers, names;
  for (const Provider& provider : all_providers(a, best)) {
    names.push_back(provider.name);
    if (a.providers.empty() || std::erase(unknown, provider.name) > 0) out.push_back(provider);
  }
  if (!unknown.empty())
    throw CLI::ValidationError(
        "--providers", fmt::format("{} does not exist on {}; use one of {}", unknown.front(),
                                   a.device, fmt::join(names, ", ")));
  const auto sm90 = [](const Provider& provider) { return provider.name == "sm90"; };
  if (!a.tune.empty() && std::none_of(out.begin(), out.end(), sm90))
    throw CLI::ValidationError(
        "--tune",
        "only sm90 has these settings; use --device cuda, and include sm90 in --providers");
  return out;
}

std::vector<Provider> present_providers(DeviceReport& report, bool best) {
  std::vector<Provider> out;
  std::string why_not;
  for (const Provider& provider : providers(report.arguments, best)) {
    try {
      provider.make();
      out.push_back(provider);
    } catch (const Error& error) {
      if (error.status() != Status::kNotSupported && error.status() != Status::kDevice) throw;
      report.leave_out(provider.name, error.message());
      why_not = error.message();
    }
  }
  if (out.empty()) throw Error(Status::kNotSupported, "no provider is available: " + why_not);
  return out;
}

}  // namespace muonrt::tool
