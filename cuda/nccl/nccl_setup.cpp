#include "cuda/nccl/nccl_setup.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <new>
#include <vector>

#include "base/peer_status.hpp"

namespace muonrt::cuda {

namespace {

constexpr int64_t kPartingMs = 10'000;
constexpr int kReportedByPeer = 3;  // the error was published by another rank

struct SetupMessage {
  int32_t status, remote_error_level, nccl_version, library_version, max_ctas;
  NcclOrigin origin;
  NcclUniqueId id;
  char message[872];
};

NcclSetup attempt(const std::function<NcclSetup()>& prepare) {
  NcclSetup out;
  try {
    return prepare();
  } catch (const std::exception&) {
    out.error = current_error();
  }
  return out;
}

std::vector<SetupMessage> gather_setups(Bootstrap& bootstrap, const NcclSetup& mine) {
  SetupMessage own{};
  own.nccl_version = mine.nccl_version;
  own.library_version = mine.library_version;
  own.max_ctas = mine.max_ctas;
  own.origin = mine.origin;
  own.id = mine.id;
  if (mine.error) {
    own.status = static_cast<int32_t>(mine.error->status());
    own.remote_error_level = mine.remote_error_level;
    const std::string& text = mine.error->message();
    std::memcpy(own.message, text.data(), std::min(text.size(), sizeof own.message - 1));
  }
  std::vector<SetupMessage> all(static_cast<size_t>(bootstrap.size()));
  bootstrap.allgather(&own, all.data(), sizeof own);
  for (SetupMessage& c : all) c.message[sizeof c.message - 1] = 0;
  return all;
}

/// Returns the error with the lowest remote_error_level. If several ranks have this level, returns
/// the error of the lowest rank.
std::optional<Error> find_first_cause(const std::vector<SetupMessage>& all) {
  const SetupMessage* cause = nullptr;
  for (const SetupMessage& c : all) {
    if (c.status != 0 && (!cause || c.remote_error_level < cause->remote_error_level)) cause = &c;
  }
  if (!cause) return std::nullopt;
  return Error(status_of_peer(cause->status), cause->message,
               static_cast<int32_t>(cause - all.data()));
}

void require_no_error(const Bootstrap& bootstrap, const std::vector<SetupMessage>& all) {
  const auto error = find_first_cause(all);
  if (error) throw all.size() == 1 ? *error : error->with_rank(bootstrap.rank());
}

/// Returns the remote_error_level of `error`, which made this rank's part of the setup fail.
int remote_error_level_of(const Error& error, const Bootstrap& alarm) {
  const auto pending_error = alarm.pending_error();
  if (pending_error && error.is_remote()) return kReportedByPeer;
  if (error.status() == Status::kTimeout) return 2;
  if (error.status() == Status::kComm)
    return pending_error ? 2 : 1;  // NCCL also returns this error if a peer has ended
  return 0;
}

/// @param what  the first part of the message, for example "versions of NCCL differ".
void require_equal(const std::vector<SetupMessage>& all, const char* what,
                   const std::function<std::string(const SetupMessage&)>& text,
                   const char* remedy) {
  std::map<std::string, std::vector<int32_t>> ranks;
  for (size_t r = 0; r < all.size(); ++r) ranks[text(all[r])].push_back(static_cast<int32_t>(r));
  if (ranks.size() == 1) return;
  std::string list;
  for (const auto& [value, who] : ranks)
    list += cat(list.empty() ? "" : "; ", value, " on ranks ", who);
  throw Error(Status::kMismatch, cat("NCCL communicator: ", what, " (", list, "); ", remedy));
}

std::string library_text(int version) {
  return cat(version / 10000, '.', version / 100 % 100, '.', version % 100);
}

std::string origin_text(NcclOrigin origin) {
  if (origin == NcclOrigin::kNew) return "none";
  return origin == NcclOrigin::kSplit ? "one to split" : "one to borrow";
}

}  // namespace

NcclUniqueId agree_on_nccl_setup(Bootstrap& bootstrap, const std::function<NcclSetup()>& prepare) {
  const std::vector<SetupMessage> all = gather_setups(bootstrap, attempt(prepare));
  require_no_error(bootstrap, all);
  const char *const load = "load the same one on all ranks", *const give =
                                                                 "give all ranks the same";
  require_equal(
      all, "versions of muonrt differ",
      [](const SetupMessage& c) { return library_text(c.library_version); }, load);
  require_equal(
      all, "versions of NCCL differ",
      [](const SetupMessage& c) { return nccl_version_text(c.nccl_version); }, load);
  require_equal(
      all, "nccl_comm and borrow differ",
      [](const SetupMessage& c) { return origin_text(c.origin); }, give);
  require_equal(
      all, "max_ctas differs", [](const SetupMessage& c) { return cat(c.max_ctas); }, give);
  return all[0].id;
}

void nccl_run_collectively(Bootstrap& bootstrap, const std::function<void()>& function) {
  const NcclSetup mine = attempt([&] {
    function();
    return NcclSetup();
  });
  require_no_error(bootstrap, gather_setups(bootstrap, mine));
}

void nccl_run_with_alarm(Bootstrap& bootstrap, bool may_block,
                         const std::function<void(const Bootstrap& alarm)>& function) {
  const auto alarm = bootstrap.duplicate(), common = bootstrap.duplicate();
  NcclSetup mine = attempt([&] {
    function(*alarm);
    return NcclSetup();
  });
  std::optional<Error> cause;
  if (mine.error) {
    cause = alarm->pending_error();
    if (!cause) cause = mine.error;
    mine.remote_error_level = remote_error_level_of(*mine.error, *alarm);
    if (mine.remote_error_level < kReportedByPeer) alarm->abort(*mine.error);
    // If a rank cannot publish its error while the other ranks wait in NCCL, the other ranks
    // continue only after their timeouts.
    const int64_t allowed = bootstrap.timeout_ms();
    bootstrap.set_timeout_ms(
        std::min(may_block ? std::min(allowed, kPartingMs) : allowed + kPartingMs, kMaxTimeoutMs));
  }
  std::vector<SetupMessage> all;
  try {
    all = gather_setups(bootstrap, mine);
  } catch (const Error& error) {
    // Either a peer did not take part, or it received all messages and then ended the program on
    // all ranks. In both cases, a peer may have published the cause before.
    if (const auto first = common->pending_error()) throw first->with_rank(bootstrap.rank());
    if (!cause) cause = alarm->pending_error();
    throw(cause ? *cause : error).with_rank(bootstrap.rank());
  }
  const auto first = find_first_cause(all);
  if (first && !common->pending_error()) common->abort(*first);
  require_no_error(bootstrap, all);
}

}  // namespace muonrt::cuda
