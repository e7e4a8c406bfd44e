#pragma once

#include <memory>

#include "comm/tcp/mailbox.hpp"
#include "comm/transport.hpp"

namespace muonrt {

/// Makes a transport of a mailbox. Collectives send all data to rank 0, which returns the result.
/// Duplicates share the mailbox and use separate channels.
std::unique_ptr<Transport> make_mailbox_transport(std::shared_ptr<Mailbox> mailbox);

}  // namespace muonrt
