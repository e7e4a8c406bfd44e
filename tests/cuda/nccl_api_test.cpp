#include "cuda/nccl_api.hpp"

#include <catch2/catch.hpp>
#include <cstring>
#include <set>

#include "backend/cuda_comm.hpp"
#include "comm/folder_post.hpp"
#include "comm/post_transport.hpp"
#include "comm/tcp_post.hpp"
#include "comm/thread_transport.hpp"
#include "comm/transport_bootstrap.hpp"
#include "cuda/nccl_meeting.hpp"
#include "cuda/real_nccl.hpp"
#include "support/loopback.hpp"
#include "support/thread_ranks.hpp"

using namespace muonrt;
using namespace muonrt::cuda;
using transport_test::on_ranks;
using transport_test::text_of;

namespace {

using MakeTransport = std::function<std::unique_ptr<Transport>(int rank)>;

/// Meets over each kind of bootstrap; the ids that came out, by rank.
void check_ids(const MakeTransport& make, const NcclApi& api, int size) {
  std::vector<NcclUniqueId> ids(static_cast<size_t>(size)), drawn(1);
  const auto errors = on_ranks(size, [&](int rank) {
    const auto bootstrap = make_bootstrap(make(rank));
    ids[static_cast<size_t>(rank)] = nccl_meet(*bootstrap, [&] {
      NcclGuest guest;
      api.get_version(&guest.nccl_version);
      if (rank == 0) {
        api.get_unique_id(&guest.id);
        drawn[0] = guest.id;
      }
      return guest;
    });
    char mine = 0, all[8];
    bootstrap->allgather(&mine, all, 1);
  });
  REQUIRE(text_of(errors) == "");
  for (const NcclUniqueId& id : ids) CHECK(std::memcmp(&id, &drawn[0], sizeof id) == 0);
  CHECK(std::string(ids[0].internal, 128) != std::string(128, '\0'));
}

std::vector<std::optional<Error>> meet(int size, const std::function<NcclGuest(int)>& prepare) {
  ThreadGroup group(size);
  return on_ranks(size, [&](int rank) {
    const auto bootstrap = make_bootstrap(group.transport(rank));
    nccl_meet(*bootstrap, [&] { return prepare(rank); });
  });
}

bool says(const std::optional<Error>& error, Status status, const std::string& words) {
  return error && error->status() == status && error->message().find(words) != std::string::npos;
}

}  // namespace

TEST_CASE("nccl api: every function resolves in the real library, without a driver", "[nccl]") {
  const NcclApi* const api = cuda_test::real_nccl();
  if (!api) {
    WARN("skipped: no NCCL library");
    return;
  }
  int version = 0;
  CHECK(api->get_version(&version) == kNcclSuccess);
  CHECK(version >= 21900);
  CHECK(nccl_version_text(22809) == "2.28.9");
  CHECK(std::string(api->error_string(kNcclInvalidUsage)).size() > 3);
}

TEST_CASE("nccl api: unique ids of the real library travel over every bootstrap", "[nccl]") {
  const NcclApi* const api = cuda_test::real_nccl();
  if (!api) {
    WARN("skipped: no NCCL library");
    return;
  }
  const int port = loopback::free_port();
  check_ids(
      [&](int rank) {
        return make_post_transport(
            make_tcp_post({rank, 3, loopback::at_port(port), "", "secret of ids", 1}, 30000));
      },
      *api, 3);
  const loopback::Folder folder;
  check_ids(
      [&](int rank) {
        return make_post_transport(make_folder_post({rank, 3, folder.path(), "ids", 1}, 30000));
      },
      *api, 3);
  ThreadGroup group(4);
  check_ids([&](int rank) { return group.transport(rank); }, *api, 4);
}

TEST_CASE("nccl api: a library that is missing, or is none, is told by name", "[nccl]") {
  const auto error = [](const char* name) -> std::optional<Error> {
    try {
      load_nccl(&name, 1);
    } catch (const Error& e) {
      return e;
    }
    return std::nullopt;
  };
  CHECK(says(error("libno-such-nccl.so.2"), Status::kNotSupported, "NCCL cannot be loaded"));
  CHECK(says(error("libc.so.6"), Status::kNotSupported, "NCCL has no function ncclGetVersion"));
}

TEST_CASE("nccl meeting: versions that differ are named with their ranks, on every rank",
          "[nccl]") {
  const auto nccl = meet(4, [](int rank) {
    NcclGuest guest;
    guest.nccl_version = rank == 2 ? 22703 : 22809;
    return guest;
  });
  const auto library = meet(3, [](int rank) {
    NcclGuest guest;
    guest.library_version = rank == 0 ? 200 : 100;
    return guest;
  });
  for (const auto& e : nccl)
    CHECK(says(e, Status::kMismatch,
               "versions of NCCL differ (2.27.3 on ranks [2]; 2.28.9 on ranks [0, 1, 3])"));
  for (const auto& e : library)
    CHECK(says(e, Status::kMismatch,
               "versions of muonrt differ (0.1.0 on ranks [1, 2]; 0.2.0 on ranks [0])"));
}

TEST_CASE("nccl meeting: a rank that cannot take part is named on every rank", "[nccl]") {
  const auto errors = meet(3, [](int rank) {
    if (rank == 1) throw Error(Status::kNotSupported, "no NCCL here");
    return NcclGuest();
  });
  for (const auto& e : errors) CHECK(says(e, Status::kNotSupported, "rank 1: no NCCL here"));
}
