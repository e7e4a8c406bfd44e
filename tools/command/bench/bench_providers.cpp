#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>

#include "backend/cuda_device.hpp"
#include "command/bench/bench_device.hpp"
#include "command/bench/fastest_products.hpp"
#include "host/host_device.hpp"

namespace muonrt::tool {

namespace {

const std::map<std::string, void (*)(Sm90Tuning&)>& tuning_words() {
  static const std::map<std::string, void (*)(Sm90Tuning&)> words = {
      {"pairs=0", [](Sm90Tuning& t) { t.pairs = false; }},
      {"pairs=1", [](Sm90Tuning& t) { t.pairs = true; }},
      {"early=0", [](Sm90Tuning& t) { t.early = false; }},
      {"early=1", [](Sm90Tuning& t) { t.early = true; }},
      {"tiles=large", [](Sm90Tuning& t) { t.tiles = Tiles::kLarge; }},
      {"tiles=medium", [](Sm90Tuning& t) { t.tiles = Tiles::kMedium; }},
      {"tiles=small", [](Sm90Tuning& t) { t.tiles = Tiles::kSmall; }},
      {"tiles=wide", [](Sm90Tuning& t) { t.tiles = Tiles::kSmallWide; }},
      {"slices=1", [](Sm90Tuning& t) { t.slices = 1; }},
      {"slices=2", [](Sm90Tuning& t) { t.slices = 2; }},
      {"slices=4", [](Sm90Tuning& t) { t.slices = 4; }}};
  return words;
}

Sm90Tuning read_tuning(const std::vector<std::string>& words) {
  Sm90Tuning out;
  for (const std::string& word : words) {
    const auto known = tuning_words().find(word);
    long rows = 0;
    char rest = 0;
    if (known != tuning_words().end()) {
      known->second(out);
    } else if (std::sscanf(word.c_str(), "raster=%ld%c", &rows, &rest) == 1 && rows >= 1 &&
               rows <= 1024) {
      out.raster = rows;
    } else {
      std::string names;
      for (const auto& [name, set] : tuning_words()) names += name + ", ";
      throw CLI::ValidationError(
          "--tune", "there is no " + word + "; there are " + names + "raster=1 to raster=1024");
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
  // Devices that can record graphs enqueue everything else as any device.
  const auto with = [reserved = a.reserved_sms](CudaSettings settings) {
    settings.graphs = true;
    settings.reserved_sms = reserved;
    return [=] { return make_cuda_device(0, settings); };
  };
  // The library's default is one of these.
  std::vector<Provider> out = {
      {"cublaslt", with({.symmetric = SymmetricProvider::kVendor})},
      {"sm80", with({.symmetric = SymmetricProvider::kSm80})},
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
        "--providers", fmt::format("there is no {} on {}; there are {}", unknown.front(), a.device,
                                   fmt::join(names, ", ")));
  const auto sm90 = [](const Provider& provider) { return provider.name == "sm90"; };
  if (!a.tune.empty() && std::none_of(out.begin(), out.end(), sm90))
    throw CLI::ValidationError("--tune",
                               "it is for sm90; use --device cuda, and sm90 among the --providers");
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
  if (out.empty()) throw Error(Status::kNotSupported, "there is no provider: " + why_not);
  return out;
}

}  // namespace muonrt::tool
