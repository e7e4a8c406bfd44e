// What brings NCCL's ranks together, over MPI: no GPU is needed for it, and where there is none it
// is refused.

#include "muonrt/nccl.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

#include "backend/cuda_device.hpp"
#include "comm/transport_bootstrap.hpp"
#include "cuda/nccl/nccl_meeting.hpp"
#include "cuda/nccl/real_nccl.hpp"
#include "mpi/harness.hpp"
#include "muonrt/mpi.h"

using namespace mpi_test;
using namespace muonrt::cuda;
using muonrt::cat;

namespace {

/// "" if a muonrt communicator over MPI is refused one for GPU memory with this status and these
/// words, and still serves after that.
std::string refused(muonrt_status_t status, const std::string& words,
                    const std::function<muonrt_status_t(muonrt_comm_t**, muonrt_comm_t*)>& create) {
  MPI_Comm parent = world();
  muonrt_comm_t* host = nullptr;
  if (muonrt_comm_create_mpi(&host, &parent, 30'000) != MUONRT_OK) return muonrt_last_error();
  muonrt_comm_t* comm = host;
  const muonrt_status_t got = create(&comm, host);
  const std::string message = muonrt_last_error();
  const bool right = got == status && !comm && message.find(words) != std::string::npos;
  std::string problem = right ? "" : cat("status ", got, ": ", message);
  if (muonrt_comm_barrier(host) != MUONRT_OK) problem += cat("; then: ", muonrt_last_error());
  muonrt_comm_destroy(host);
  return problem;
}

/// What a meeting over MPI says where the last rank brings something else.
std::string met(const std::function<void(NcclGuest&)>& change) {
  const auto bootstrap = muonrt::make_bootstrap(connect());
  return attempt([&] {
    nccl_meet(*bootstrap, [&] {
      NcclGuest guest;
      guest.nccl_version = 22809;
      guest.library_version = 100;
      guest.max_ctas = 8;
      if (rank() == size() - 1) change(guest);
      return guest;
    });
  });
}

}  // namespace

TEST_CASE("mpi nccl: without a GPU communicators of GPU memory are refused on every rank",
          "[mpi][nccl]") {
  if (muonrt::cuda_device_count() > 0) return;
  const auto nccl = [](muonrt_comm_t** comm, muonrt_comm_t* host) {
    return muonrt_comm_create_nccl(comm, host, nullptr);
  };
  const auto staged = [](muonrt_comm_t** comm, muonrt_comm_t* host) {
    return muonrt_comm_create_staged(comm, host, 0);
  };
  REQUIRE(on_all(refused(MUONRT_ERROR_NOT_SUPPORTED, "no CUDA device", nccl)) == "");
  REQUIRE(on_all(refused(MUONRT_ERROR_NOT_SUPPORTED, "no CUDA device", staged)) == "");
}

TEST_CASE("mpi nccl: what is wrong with the last rank's options is told on every rank",
          "[mpi][nccl]") {
  const auto create = [](muonrt_comm_t** comm, muonrt_comm_t* host) {
    muonrt_nccl_options_t options;
    muonrt_nccl_options_init(&options);
    if (rank() == size() - 1) options.max_ctas = 3;
    return muonrt_comm_create_nccl(comm, host, &options);
  };
  const std::string words = cat(size() > 1 ? cat("rank ", size() - 1, ": ") : std::string(),
                                "muonrt_comm_create_nccl: max_ctas is 3");
  REQUIRE(on_all(refused(MUONRT_ERROR_INVALID_ARGUMENT, words, create)) == "");
}

TEST_CASE("mpi nccl: settings and versions that differ are named with their ranks, on every rank",
          "[mpi][nccl]") {
  if (size() < 2) return;
  const auto unlike = [](const std::string& got, const std::string& words) {
    const bool right = got.find("MUONRT_ERROR_MISMATCH") == 0 && got.find(words) != got.npos;
    return right ? std::string() : cat("'", got, "' in place of '", words, "'; ");
  };
  const std::vector<int> last = {size() - 1};
  std::vector<int> others;
  for (int r = 0; r + 1 < size(); ++r) others.push_back(r);
  std::string problem =
      unlike(met([](NcclGuest& guest) { guest.max_ctas = 16; }),
             cat("max_ctas differs (16 on ranks ", last, "; 8 on ranks ", others, ")"));
  problem += unlike(
      met([](NcclGuest& guest) { guest.nccl_version = 22703; }),
      cat("versions of NCCL differ (2.27.3 on ranks ", last, "; 2.28.9 on ranks ", others, ")"));
  problem += unlike(met([](NcclGuest& guest) { guest.origin = NcclOrigin::kSplit; }),
                    cat("nccl_comm and borrow differ (none on ranks ", others,
                        "; one to split on ranks ", last, ")"));
  REQUIRE(on_all(problem) == "");
}

TEST_CASE("mpi nccl: what fails on one rank ends the others' waits in NCCL, at any thread level",
          "[mpi][nccl]") {
  const auto bootstrap = muonrt::make_bootstrap(connect());
  std::string problem;
  const std::string error = attempt([&] {
    nccl_enter(*bootstrap, false, [&](const muonrt::Bootstrap& alarm) {
      if (rank() == size() - 1) throw muonrt::Error(muonrt::Status::kDevice, "no way in");
      const auto deadline = muonrt::Deadline::in_ms(20'000);
      while (!deadline.passed())
        if (const auto trouble = alarm.trouble()) throw *trouble;
      problem = "nothing was heard; ";
    });
  });
  const std::string words = cat(size() > 1 ? cat("rank ", size() - 1, ": ") : "", "no way in");
  // It is in order after that.
  char mine = 0;
  std::vector<char> all(static_cast<size_t>(size()));
  problem += attempt([&] { bootstrap->allgather(&mine, all.data(), 1); });
  if (error.find(cat("MUONRT_ERROR_DEVICE: ", words)) != 0) problem += cat("'", error, "'");
  REQUIRE(on_all(problem) == "");
}

// An entry of its own, which is skipped where there is no library.
TEST_CASE("mpi nccl: ranks agree on the real library's version and get rank 0's unique id",
          "[.real_nccl]") {
  const NcclApi* const api = cuda_test::real_nccl();
  if (!api) WARN("skipped: no NCCL library");
  if (!api) return;
  const auto bootstrap = muonrt::make_bootstrap(connect());
  NcclUniqueId drawn{}, got{};
  std::string problem = attempt([&] {
    got = nccl_meet(*bootstrap, [&] {
      NcclGuest guest;
      const bool known = api->get_version(&guest.nccl_version) == kNcclSuccess;
      if (rank() == 0 && known && api->get_unique_id(&drawn) == kNcclSuccess) guest.id = drawn;
      return guest;
    });
  });
  // Once more, past the bootstrap.
  MPI_Bcast(&drawn, sizeof drawn, MPI_BYTE, 0, world());
  if (std::memcmp(&drawn, &got, sizeof got) != 0) problem += "another id than rank 0 drew";
  if (std::string(got.internal, 128) == std::string(128, '\0')) problem += "an empty id";
  REQUIRE(on_all(problem) == "");
}
