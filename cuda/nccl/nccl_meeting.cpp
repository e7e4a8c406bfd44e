#include "cuda/nccl/nccl_meeting.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <new>
#include <vector>

#include "base/peer_status.hpp"

namespace muonrt::cuda {

namespace {

constexpr int64_t kPartingMs = 10'000;
constexpr int kHeard = 3;  // another rank's error itself

struct Card {
  int32_t status, secondhand, nccl_version, library_version, max_ctas;
  NcclOrigin origin;
  NcclUniqueId id;
  char message[872];
};

NcclGuest attempt(const std::function<NcclGuest()>& prepare) {
  NcclGuest out;
  try {
    return prepare();
  } catch (const std::exception&) {
    out.error = caught_error();
  }
  return out;
}

std::vector<Card> gather_cards(Bootstrap& bootstrap, const NcclGuest& mine) {
  Card card{};
  card.nccl_version = mine.nccl_version;
  card.library_version = mine.library_version;
  card.max_ctas = mine.max_ctas;
  card.origin = mine.origin;
  card.id = mine.id;
  if (mine.error) {
    card.status = static_cast<int32_t>(mine.error->status());
    card.secondhand = mine.secondhand;
    const std::string& text = mine.error->message();
    std::memcpy(card.message, text.data(), std::min(text.size(), sizeof card.message - 1));
  }
  std::vector<Card> all(static_cast<size_t>(bootstrap.size()));
  bootstrap.allgather(&card, all.data(), sizeof card);
  for (Card& c : all) c.message[sizeof c.message - 1] = 0;
  return all;
}

/// Of errors that are equally secondhand the first rank's.
std::optional<Error> agreed_error(const std::vector<Card>& all) {
  const Card* cause = nullptr;
  for (const Card& c : all) {
    if (c.status != 0 && (!cause || c.secondhand < cause->secondhand)) cause = &c;
  }
  if (!cause) return std::nullopt;
  return Error(status_of_peer(cause->status), cause->message,
               static_cast<int32_t>(cause - all.data()));
}

void require_no_error(const Bootstrap& bootstrap, const std::vector<Card>& all) {
  const auto error = agreed_error(all);
  if (error) throw all.size() == 1 ? *error : error->named(bootstrap.rank());
}

/// Of a rank that has failed: how its own error looks beside those of the others.
int secondhand_of(const Error& error, const Bootstrap& alarm) {
  const auto trouble = alarm.trouble();
  if (trouble && error.is_secondhand()) return kHeard;
  if (error.status() == Status::kTimeout) return 2;
  if (error.status() == Status::kComm) return trouble ? 2 : 1;  // a peer that is gone looks so, too
  return 0;
}

/// @param what  "versions of NCCL differ".
void require_equal(const std::vector<Card>& all, const char* what,
                   const std::function<std::string(const Card&)>& text, const char* remedy) {
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

NcclUniqueId nccl_meet(Bootstrap& bootstrap, const std::function<NcclGuest()>& prepare) {
  const std::vector<Card> all = gather_cards(bootstrap, attempt(prepare));
  require_no_error(bootstrap, all);
  const char *const load = "load the same one on all ranks", *const give =
                                                                 "give all ranks the same";
  require_equal(
      all, "versions of muonrt differ",
      [](const Card& c) { return library_text(c.library_version); }, load);
  require_equal(
      all, "versions of NCCL differ",
      [](const Card& c) { return nccl_version_text(c.nccl_version); }, load);
  require_equal(
      all, "nccl_comm and borrow differ", [](const Card& c) { return origin_text(c.origin); },
      give);
  require_equal(
      all, "max_ctas differs", [](const Card& c) { return cat(c.max_ctas); }, give);
  return all[0].id;
}

void nccl_together(Bootstrap& bootstrap, const std::function<void()>& work) {
  const NcclGuest mine = attempt([&] {
    work();
    return NcclGuest();
  });
  require_no_error(bootstrap, gather_cards(bootstrap, mine));
}

void nccl_enter(Bootstrap& bootstrap, bool may_block,
                const std::function<void(const Bootstrap& alarm)>& work) {
  const auto alarm = bootstrap.duplicate(), verdict = bootstrap.duplicate();
  NcclGuest mine = attempt([&] {
    work(*alarm);
    return NcclGuest();
  });
  std::optional<Error> cause;
  if (mine.error) {
    cause = alarm->trouble();
    if (!cause) cause = mine.error;
    mine.secondhand = secondhand_of(*mine.error, *alarm);
    if (mine.secondhand < kHeard) alarm->abort(*mine.error);
    // Where nothing can be heard, the others come at their deadlines.
    const int64_t allowed = bootstrap.timeout_ms();
    bootstrap.set_timeout_ms(
        std::min(may_block ? std::min(allowed, kPartingMs) : allowed + kPartingMs, kMaxTimeoutMs));
  }
  std::vector<Card> all;
  try {
    all = gather_cards(bootstrap, mine);
  } catch (const Error& error) {
    // A rank does not come; what began it may be known all the same. Or the program of one that
    // has heard all has ended the others with it; that rank has left the verdict before.
    if (const auto agreed = verdict->trouble()) throw agreed->named(bootstrap.rank());
    if (!cause) cause = alarm->trouble();
    throw(cause ? *cause : error).named(bootstrap.rank());
  }
  const auto agreed = agreed_error(all);
  if (agreed && !verdict->trouble()) verdict->abort(*agreed);
  require_no_error(bootstrap, all);
}

}  // namespace muonrt::cuda
