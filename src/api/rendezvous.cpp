#include "muonrt/rendezvous.h"

#include "api/as_status.hpp"
#include "api/handles.hpp"
#include "api/structs.hpp"
#include "base/backoff.hpp"
#include "base/sized_struct.hpp"
#include "comm/tcp/rendezvous.hpp"

using namespace muonrt;
using api::as_status;
using api::require_pointer;

namespace {

constexpr int64_t kTimeoutMs = 60'000;

void require_timeout(int64_t ms, const char* function) {
  MUONRT_REQUIRE(ms >= 1 && ms <= kMaxTimeoutMs, Status::kInvalidArgument, function,
                 ": timeout_ms is ", ms, ", but must be between 1 and ", kMaxTimeoutMs,
                 "; set it to a number of milliseconds");
}

void require_secret_bytes(int64_t bytes, const char* function) {
  const auto least = static_cast<int64_t>(kSecretBytes);
  MUONRT_REQUIRE(bytes >= least && bytes <= 4096, Status::kInvalidArgument, function,
                 ": secret_bytes is ", bytes, ", but must be between ", least,
                 " and 4096; pass the size of the secret");
}

/// Returns the fields that the options for a folder and the options for an address have in common,
/// except strings.
template <class Options>
Rendezvous rendezvous_of(const Options& options, const char* function) {
  Rendezvous out;
  out.rank = options.rank;
  out.size = options.size;
  out.version = muonrt_get_version();
  out.ports = {options.first_port, options.last_port};
  if (options.interrupted) {
    out.check_interrupt = [call = options.interrupted, state = options.state, function] {
      MUONRT_REQUIRE(call(state) == 0, Status::kAborted, function,
                     ": interrupted while ranks connected; call it again on all ranks");
    };
  }
  return out;
}

}  // namespace

extern "C" {

void muonrt_tcp_options_init_sized(muonrt_tcp_options_t* tcp, uint32_t size) {
  muonrt::fill_sized(tcp, size, [](muonrt_tcp_options_t& out) {
    out.rank = -1;
    out.timeout_ms = kTimeoutMs;
  });
}

muonrt_status_t muonrt_comm_create_tcp(muonrt_comm_t** comm, const muonrt_tcp_options_t* options) {
  constexpr const char* kName = "muonrt_comm_create_tcp";
  return as_status([&] {
    require_pointer(comm, kName, "comm");
    *comm = nullptr;
    require_pointer(options, kName, "options");
    muonrt_tcp_options_t given;
    muonrt_tcp_options_init(&given);
    given = api::read_struct(options, given, kName);
    require_pointer(given.address, kName, "options.address");
    require_pointer(given.secret, kName, "options.secret");
    require_secret_bytes(given.secret_bytes, kName);
    require_timeout(given.timeout_ms, kName);
    Rendezvous rendezvous = rendezvous_of(given, kName);
    const Deadline deadline = Deadline::in_ms(given.timeout_ms);
    retry_while_out_of_memory(deadline, [&] {
      rendezvous.address = given.address;
      rendezvous.interface = given.interface_name ? given.interface_name : "";
      rendezvous.secret.assign(given.secret, static_cast<size_t>(given.secret_bytes));
    });
    if (given.listening) {
      rendezvous.listening = [&](const std::string& address) {
        const int32_t code = given.listening(given.state, address.c_str());
        MUONRT_REQUIRE(
            code == 0, Status::kCallback, kName, ": options.listening returned ", code, " for ",
            address,
            " (0 is success), so no rank was connected; return 0 if the address was published");
      };
    }
    *comm = api::release_comm(std::make_unique<muonrt_comm>(
        make_tcp_transport(rendezvous_at_address(rendezvous, deadline))));
    return Status::kOk;
  });
}

void muonrt_folder_options_init_sized(muonrt_folder_options_t* folder, uint32_t size) {
  muonrt::fill_sized(folder, size, [](muonrt_folder_options_t& out) {
    out.rank = -1;
    out.timeout_ms = kTimeoutMs;
  });
}

muonrt_status_t muonrt_comm_create_folder(muonrt_comm_t** comm,
                                          const muonrt_folder_options_t* options) {
  constexpr const char* kName = "muonrt_comm_create_folder";
  return as_status([&] {
    require_pointer(comm, kName, "comm");
    *comm = nullptr;
    require_pointer(options, kName, "options");
    muonrt_folder_options_t given;
    muonrt_folder_options_init(&given);
    given = api::read_struct(options, given, kName);
    require_pointer(given.path, kName, "options.path");
    require_pointer(given.run_id, kName, "options.run_id");
    require_timeout(given.timeout_ms, kName);
    // If secret_bytes is set, secret must also be set. Without this check, a caller could by
    // mistake start a rendezvous that requires no secret.
    if (given.secret_bytes != 0) require_pointer(given.secret, kName, "options.secret");
    if (given.secret) require_secret_bytes(given.secret_bytes, kName);
    Rendezvous rendezvous = rendezvous_of(given, kName);
    const Deadline deadline = Deadline::in_ms(given.timeout_ms);
    retry_while_out_of_memory(deadline, [&] {
      rendezvous.address = given.path;
      rendezvous.run_id = given.run_id;
      if (given.secret)
        rendezvous.secret.assign(given.secret, static_cast<size_t>(given.secret_bytes));
    });
    *comm = api::release_comm(std::make_unique<muonrt_comm>(
        make_tcp_transport(rendezvous_in_folder(rendezvous, deadline))));
    return Status::kOk;
  });
}

}  // extern "C"
