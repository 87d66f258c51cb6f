// The end of a search: when it has had its seconds of processor time, which pass no faster than real time. On a busy
// machine it ends after `kBusy` times as much real time.
#pragma once

#include <atomic>
#include <chrono>
#include <cmath>
#include <ctime>
#include <stdexcept>

namespace downset {

// Set from the moment at which a user ends all searches of this process; it may be set while they run.
inline std::atomic<bool> interrupted{false};

class Deadline {
public:
    // `seconds` from now: at once if they are not above 0, never if they are infinite.
    explicit Deadline(double seconds) : processor_s_(seconds) {
        if (std::isnan(seconds)) throw std::invalid_argument("time limit: not a number of seconds");
        if (seconds > 0) processor_s_ += processor_s();
        last_ = at_ + std::chrono::duration<double>(kBusy * seconds);
        at_ += std::chrono::duration<double>(seconds);
    }
    bool passed() const {
        if (interrupted.load(std::memory_order_relaxed)) return true;
        const auto now = Clock::now();
        if (now <= at_) return false;
        if (now > last_) return true;
        // To ask for processor time takes longer, so it is asked for only when it may be over.
        const double left_s = processor_s_ - processor_s();
        if (left_s > 0) at_ = now + std::chrono::duration<double>(left_s);
        return left_s <= 0;
    }

private:
    using Clock = std::chrono::steady_clock;
    static constexpr double kBusy = 6;  // BUSY of budget.py
    static double processor_s() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

    // Seconds as double: what is added to them cannot overflow.
    double processor_s_;
    mutable std::chrono::time_point<Clock, std::chrono::duration<double>> at_ = Clock::now(), last_ = at_;
};

}  // namespace downset
