#include "comm/folder_meeting.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <functional>
#include <optional>

#include "comm/looks.hpp"
#include "comm/transport.hpp"

namespace muonrt {

namespace {

constexpr const char* kAnswerFile = "answer";
std::string card_file(int32_t of) { return cat("card.", of); }
/// Left by a rank that waits no longer, before it drops its lock.
std::string gave_up_file(int32_t of) { return cat("gave_up.", of); }

/// Bytes of an answer at most. Rank 0 may believe in more ranks than this one.
int64_t most_of_answer(int64_t size) {
  return std::max<int64_t>(size, 65536) * int64_t{sizeof(Card)} + 65536;
}

/// Past its deadline that a rank waits for a rank 0 that is there.
constexpr int64_t kAnswerMs = 2000;

/// What rank 0 leaves for the one who wrote that card.
std::string refusal_file(int32_t rank, const Card& card) {
  std::string out = cat("refused.", rank, '.');
  for (const uint8_t byte : card.nonce) {
    out += "0123456789abcdef"[byte >> 4];
    out += "0123456789abcdef"[byte & 15];
  }
  return out;
}

/// Before the cards and the message.
struct AnswerHead {
  std::array<char, 8> magic;
  int32_t status, size;
  Digest proof;
};
constexpr std::array<char, 8> kHead = {'m', 'u', 'o', 'n', 'r', 't', 'H', '1'};

template <class T>
T value_at(const std::string& bytes, size_t at) {
  T out;
  std::memcpy(&out, bytes.data() + at, sizeof out);
  return out;
}

template <class T>
std::string bytes_of(const T& value, size_t bytes = sizeof(T)) {
  return std::string(reinterpret_cast<const char*>(&value), bytes);
}

/// @param rest  cards and message.
Digest proof_of(const FolderMeeting& meeting, const AnswerHead& head, const std::string& rest) {
  return keyed(meeting.secret, bytes_of(head, offsetof(AnswerHead, proof)) + meeting.run_id + rest);
}

/// Rank 0's side.
class Host {
 public:
  Host(RunFolder& folder, const FolderMeeting& meeting)
      : folder_(folder), meeting_(meeting), guests_(static_cast<size_t>(meeting.size)) {
    guests_[0].card = make_card(meeting);
  }

  void run(Deadline deadline) {
    folder_.make();
    folder_.take_lock();
    try {
      for (Looks looks; !all_came(); looks.pause()) {
        MUONRT_REQUIRE(!deadline.passed(), Status::kTimeout, late());
        look_after(watched_++ % guests_.size());
      }
    } catch (const Error& error) {
      list_the_rest();
      answer(error.status(), error.message());
      throw;
    }
    answer(Status::kOk, "");
  }

 private:
  struct Guest {
    Card card{};
    bool came = false;
    bool left = false;         // came, and gave up
    bool locked = false;       // when it came
    bool turned_away = false;  // one of its number was
  };

  bool all_came() {
    bool all = true;
    for (int32_t r = 1; r < meeting_.size; ++r) {
      Guest& guest = guests_[static_cast<size_t>(r)];
      std::string content;
      if (!guest.came && folder_.read(card_file(r), content, sizeof(Card))) {
        guest.card = read_card(r, content);
        guest.came = knows_secret(r, guest);
        if (guest.came) check(r, guest.card);
        guest.locked = guest.came && folder_.has_lock(r);
      }
      all = all && guest.came && !guest.left;
    }
    for (size_t r = 1; all && r < guests_.size(); ++r) {
      look_after(r);
      all = !guests_[r].left;
    }
    return all;
  }

  static Card read_card(int32_t rank, const std::string& content) {
    MUONRT_REQUIRE(
        content.size() == sizeof(Card), Status::kCorrupt, "shared folder: the card of rank ", rank,
        " has ", content.size(), " bytes (", sizeof(Card),
        " expected); use one version of muonrt on all ranks, or look at the file system");
    const auto card = value_at<Card>(content, 0);
    MUONRT_REQUIRE(card.magic == kCard, Status::kCorrupt, "shared folder: the card of rank ", rank,
                   " holds something else; look who writes to the folder");
    return card;
  }

  /// Who does not is turned away, and its place free again for who does.
  bool knows_secret(int32_t rank, Guest& guest) {
    if (equal_in_constant_time(guest.card.proof, proof_of(meeting_, guest.card))) return true;
    folder_.write(refusal_file(rank, guest.card), nullptr, 0);
    folder_.remove(card_file(rank));
    guest.card = {};
    guest.turned_away = true;
    return false;
  }

  void check(int32_t rank, const Card& card) const {
    MUONRT_REQUIRE(card.version == meeting_.version, Status::kMismatch, "shared folder: rank ",
                   rank, " runs version ", card.version, " of muonrt, rank 0 ", meeting_.version,
                   "; use one version on all ranks");
    MUONRT_REQUIRE(card.size == meeting_.size, Status::kMismatch, "shared folder: rank ", rank,
                   " believes in ", card.size, " ranks, rank 0 in ", meeting_.size,
                   "; start all with the same number");
    MUONRT_REQUIRE(card.rank == rank, Status::kMismatch, "shared folder: the card of rank ", rank,
                   " says that it is of rank ", card.rank,
                   "; give each rank a number of its own, and look who writes to ", folder_.path());
  }

  /// Whether a rank that came is still there. One that gave up lives, and is no reason to end.
  void look_after(size_t rank) {
    Guest& guest = guests_[rank];
    const auto r = static_cast<int32_t>(rank);
    if (!guest.came || guest.left) return;
    const bool dead = guest.locked && folder_.lacks_lock(r);
    guest.left = folder_.exists(gave_up_file(r));  // after the lock, which is dropped after it
    MUONRT_REQUIRE(!dead || guest.left, Status::kComm, "shared folder ", folder_.path(), ": rank ",
                   rank, " came, and its process has ended before all others were there",
                   after("; by then ", missing(), " had not come"), "; look at its messages");
  }

  static std::string after(const char* before, const std::vector<int32_t>& ranks,
                           const char* behind) {
    return ranks.empty() ? "" : cat(before, name_ranks(ranks), behind);
  }

  std::vector<int32_t> ranks_that(const std::function<bool(const Guest&)>& is) const {
    std::vector<int32_t> out;
    for (size_t r = 1; r < guests_.size(); ++r) {
      if (is(guests_[r])) out.push_back(static_cast<int32_t>(r));
    }
    return out;
  }
  std::vector<int32_t> missing() const {
    return ranks_that([](const Guest& g) { return !g.came; });
  }

  std::string late() const {
    const auto left = ranks_that([](const Guest& g) { return g.left; });
    const auto others = ranks_that([](const Guest& g) { return !g.came && g.turned_away; });
    const std::string absent = after(
        "", missing(), cat(" of ", meeting_.size, " did not come before the deadline").c_str());
    return cat("shared folder ", folder_.path(), ": ", absent,
               after(absent.empty() ? "" : "; ", left, " came and gave up before it"),
               after("; ", others, " came with another secret"),
               "; start all ranks with the same folder, run id and secret, or raise the timeout");
  }

  /// Whose cards are there and were not looked at: they find themselves in the answer.
  void list_the_rest() {
    for (int32_t r = 1; r < meeting_.size; ++r) {
      Guest& guest = guests_[static_cast<size_t>(r)];
      std::string content;
      try {
        if (!guest.came && folder_.read(card_file(r), content, sizeof(Card)) &&
            content.size() == sizeof(Card))
          guest.card = value_at<Card>(content, 0);
      } catch (const Error&) {  // not listed
      }
    }
  }

  void answer(Status status, const std::string& message) {
    std::vector<Card> cards;
    for (const Guest& guest : guests_) cards.push_back(guest.card);
    const std::string text = make_answer(meeting_, cards, status, message);
    folder_.write(kAnswerFile, text.data(), std::ssize(text));
  }

  RunFolder& folder_;
  const FolderMeeting& meeting_;
  std::vector<Guest> guests_;  // by rank
  size_t watched_ = 0;
};

std::string different_secrets(const RunFolder& folder, const FolderMeeting& meeting) {
  return cat("shared folder ", folder.path(), ": rank 0 and rank ", meeting.rank,
             " have different secrets, or one has none; give all ranks the same");
}

void check_answer(const RunFolder& folder, const FolderMeeting& meeting, const std::string& answer,
                  const Card& mine) {
  AnswerHead head{};
  if (answer.size() >= sizeof head) head = value_at<AnswerHead>(answer, 0);
  const bool sound = head.magic == kHead && head.size >= 1 &&
                     (answer.size() - sizeof head) / sizeof(Card) >= static_cast<size_t>(head.size);
  MUONRT_REQUIRE(sound, Status::kCorrupt, "shared folder: ", folder.path(), '/', kAnswerFile,
                 " is none of rank 0; look who writes there, and use one version of muonrt on all "
                 "ranks");
  const size_t own = sizeof head + static_cast<size_t>(meeting.rank) * sizeof(Card);
  const bool listed =
      meeting.rank < head.size && std::memcmp(answer.data() + own, &mine, sizeof mine) == 0;
  const bool known =
      equal_in_constant_time(head.proof, proof_of(meeting, head, answer.substr(sizeof head)));
  MUONRT_REQUIRE(known || !listed, Status::kComm, different_secrets(folder, meeting));
  MUONRT_REQUIRE(known, Status::kInvalidState, "shared folder: ", folder.path(),
                 " holds an answer that is not for rank ", meeting.rank,
                 " (of an earlier run, or by another secret); give every run an id of its own, and "
                 "all its ranks the same secret");
  const size_t cards_end = sizeof head + static_cast<size_t>(head.size) * sizeof(Card);
  // A rank that comes after the meeting has failed is not in its answer either.
  if (head.status != 0) {
    throw Error(
        static_cast<Status>(head.status),
        answer.substr(cards_end) +
            (listed ? ""
                    : cat(" (rank ", meeting.rank, " is not in this answer in ", folder.path(),
                          ": it came late, or the answer is of an earlier run; give every "
                          "run an id of its own)")));
  }
  MUONRT_REQUIRE(meeting.rank < head.size, Status::kMismatch, "shared folder: rank ", meeting.rank,
                 " believes in ", meeting.size, " ranks, rank 0 in ", head.size,
                 "; start all with the same number");
  MUONRT_REQUIRE(listed, Status::kInvalidState, "shared folder: ", folder.path(),
                 " holds the answer of an earlier run; give every run an id of its own");
}

/// Throws, unless the answer has come at the last moment.
void give_up(RunFolder& folder, const FolderMeeting& meeting, std::string& answer) {
  folder.write(gave_up_file(meeting.rank), nullptr, 0);
  MUONRT_REQUIRE(folder.read(kAnswerFile, answer, most_of_answer(meeting.size)), Status::kTimeout,
                 "shared folder ", folder.path(),
                 ": rank 0 gave no answer before the deadline; look for a rank that is missing, or "
                 "for a folder left by an earlier run");
}

void go_to_rank_0(RunFolder& folder, const FolderMeeting& meeting, Deadline deadline) {
  Looks looks;
  for (; !folder.is_there(); looks.pause()) {
    MUONRT_REQUIRE(!deadline.passed(), Status::kTimeout, "shared folder: rank 0 did not make ",
                   folder.path(), " before the deadline; start it with the same folder and run id");
  }
  if (meeting.secret.empty()) folder.require_own();
  bool locked = folder.take_lock(), seen = folder.has_lock(0);
  const Card mine = make_card(meeting);
  MUONRT_REQUIRE(folder.write(card_file(meeting.rank), &mine, sizeof mine, true),
                 Status::kInvalidState, "shared folder: ", folder.path(), " has a rank ",
                 meeting.rank,
                 " already (an earlier run, or two processes of that rank); give every run an id "
                 "and every rank a number of its own");
  const std::string refusal = refusal_file(meeting.rank, mine);
  // Rank 0, whose deadline may be the same, then says who is missing.
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline.at() - Deadline::Clock::now());
  const Deadline last = Deadline::in_ms(left.count() + kAnswerMs);
  std::string answer;
  for (; !folder.read(kAnswerFile, answer, most_of_answer(meeting.size)); looks.pause()) {
    if (deadline.passed() && (last.passed() || !folder.has_lock(0))) {
      give_up(folder, meeting, answer);
      break;
    }
    MUONRT_REQUIRE(!folder.exists(refusal), Status::kComm, different_secrets(folder, meeting));
    if (!looks.rarely()) continue;
    locked = locked || folder.take_lock();  // a second process of this rank may have had it
    const RunFolder::Lock lock = folder.lock_of(0);
    MUONRT_REQUIRE(
        lock != RunFolder::Lock::kFree || !seen || folder.exists(kAnswerFile), Status::kComm,
        "shared folder ", folder.path(),
        ": rank 0 has left or its process has ended before all ranks were there; look at "
        "its messages");
    seen = seen || lock == RunFolder::Lock::kHeld;
  }
  check_answer(folder, meeting, answer, mine);
}

}  // namespace

Card make_card(const FolderMeeting& meeting) {
  Card out{kCard, meeting.rank, meeting.size, meeting.version, 0, fresh_nonce(), {}};
  out.proof = proof_of(meeting, out);
  return out;
}

Digest proof_of(const FolderMeeting& meeting, const Card& card) {
  return keyed(meeting.secret, bytes_of(card, offsetof(Card, proof)) + meeting.run_id);
}

std::string make_answer(const FolderMeeting& meeting, const std::vector<Card>& cards, Status status,
                        const std::string& message) {
  AnswerHead head{kHead, static_cast<int32_t>(status), meeting.size, {}};
  std::string rest(reinterpret_cast<const char*>(cards.data()), cards.size() * sizeof(Card));
  rest += message;
  head.proof = proof_of(meeting, head, rest);
  return bytes_of(head) + rest;
}

void meet_in(RunFolder& folder, const FolderMeeting& meeting, Deadline deadline) {
  if (meeting.rank == 0) {
    Host(folder, meeting).run(deadline);
  } else {
    go_to_rank_0(folder, meeting, deadline);
  }
}

}  // namespace muonrt
