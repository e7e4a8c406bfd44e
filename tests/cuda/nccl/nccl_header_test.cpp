// Compares muonrt's declarations of NCCL's binary interface with NCCL's header, if the header
// exists. The header includes the real CUDA headers, so it is compiled in a separate program.
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "cuda/nccl/nccl_types.hpp"

namespace {

/// Compiles and runs a small program that includes nccl.h. Returns the numbers that it prints, or
/// "" if nccl.h does not exist.
std::string from_the_header() {
  const std::string program = R"(#include <nccl.h>
#include <stddef.h>
#include <stdio.h>
int main(void) {
  ncclConfig_t c = NCCL_CONFIG_INITIALIZER;
  printf("%zu %u %d %d %d %d %d %zu %zu %zu %zu %zu %zu", sizeof c, c.magic, (int)ncclInt8,
         (int)ncclInt32, (int)ncclInt64, (int)ncclMax, (int)ncclInProgress,
         sizeof(ncclUniqueId), offsetof(ncclConfig_t, blocking), offsetof(ncclConfig_t, maxCTAs),
         offsetof(ncclConfig_t, splitShare), offsetof(ncclConfig_t, commName),
         offsetof(ncclConfig_t, nChannelsPerNetPeer));
}
)";
  char folder[] = "/tmp/muonrt-nccl-XXXXXX";
  if (!mkdtemp(folder)) return "";
  const std::string base = std::string(folder) + "/p", source = base + ".cpp";
  std::FILE* const file = std::fopen(source.c_str(), "w");
  std::fputs(program.c_str(), file);
  std::fclose(file);
  const std::string command = "c++ -I/usr/local/cuda/include " + source + " -o " + base +
                              " 2> /dev/null && " + base + " > " + base + ".out";
  std::string out;
  if (std::system(command.c_str()) == 0) {
    std::FILE* const result = std::fopen((base + ".out").c_str(), "r");
    char text[256] = "";
    if (std::fgets(text, sizeof text, result)) out = text;
    std::fclose(result);
  }
  [[maybe_unused]] const int removed = std::system(("rm -rf " + std::string(folder)).c_str());
  return out;
}

}  // namespace

TEST_CASE("nccl types: equal to those of nccl.h", "[nccl]") {
  using muonrt::cuda::NcclConfig;
  const std::string header = from_the_header();
  if (header.empty()) {
    WARN("skipped: no nccl.h");
    return;
  }
  const NcclConfig c;
  const auto offset = [&](const auto& field) {
    return std::to_string(reinterpret_cast<const char*>(&field) -
                          reinterpret_cast<const char*>(&c));
  };
  const auto number = [](auto x) { return std::to_string(x); };
  using namespace muonrt::cuda;
  CHECK(header == number(c.size) + " " + number(c.magic) + " " + number(int{kNcclInt8}) + " " +
                      number(int{kNcclInt32}) + " " + number(int{kNcclInt64}) + " " +
                      number(int{kNcclMax}) + " " + number(int{kNcclInProgress}) + " " +
                      number(sizeof(NcclUniqueId)) + " " + offset(c.blocking) + " " +
                      offset(c.max_ctas) + " " + offset(c.split_share) + " " + offset(c.comm_name) +
                      " " + offset(c.channels_per_net_peer));
}
