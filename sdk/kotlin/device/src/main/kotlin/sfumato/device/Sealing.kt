/**
 * Sealed reports: reports that the shuffler carries and only the service opens, and their outer layer.
 *
 * HPKE (RFC 9180) in base mode with X25519, HKDF-SHA256 and AES-128-GCM, and Ed25519, by Bouncy Castle:
 *
 *     info      = label || round id || SHA-256(round bytes)
 *     plaintext = report id (16 bytes) || slot (4 bytes, big-endian) || value
 *     sealed    = encapsulated key (32 bytes) || ciphertext || tag (16 bytes)
 *
 * A device wraps the sealed report once more for the shuffler, each time it sends it:
 *
 *     info      = outer label || round id
 *     plaintext = sealed
 *     wrapped   = encapsulated key (32 bytes) || ciphertext || tag (16 bytes)
 *
 * Needs the library `org.bouncycastle:bcprov-jdk18on`, which the app declares.
 */
package sfumato.device

import org.bouncycastle.crypto.hpke.HPKE
import org.bouncycastle.crypto.params.Ed25519PublicKeyParameters
import org.bouncycastle.crypto.signers.Ed25519Signer
import java.nio.ByteBuffer
import java.security.MessageDigest

/** Length of each HPKE key. */
internal const val KEY_BYTES = 32
private const val REPORT_ID_BYTES = 16
private const val SIGNATURE_BYTES = 64
private const val MAX_SLOT = 0xffffffffL
private const val LABEL = "sfumato sealed report 1"
private const val OUTER_LABEL = "sfumato outer layer 1"
private const val ROUND_LABEL = "sfumato round 2"

private val SUITE = HPKE(HPKE.mode_base, HPKE.kem_X25519_SHA256, HPKE.kdf_HKDF_SHA256, HPKE.aead_AES_GCM128)

/**
 * Return a sealed report, 68 bytes longer than the value. A second call returns other bytes, so a device stores the result.
 *
 * @param reportId 16 random bytes.
 * @param slot In 0 .. 2^32 - 1.
 * @param roundBytes The round as the device received it.
 * @param publicKey HPKE public key of the round, 32 bytes.
 * @throws InvalidSpec An argument has the wrong length or range, or the key is not valid.
 */
internal fun seal(reportId: ByteArray, slot: Long, value: ByteArray, roundId: String, roundBytes: ByteArray, publicKey: ByteArray): ByteArray {
    check(reportId.size == REPORT_ID_BYTES && slot in 0..MAX_SLOT) { "a report id has $REPORT_ID_BYTES bytes, and a slot lies in 0..$MAX_SLOT" }
    val slotBytes = ByteBuffer.allocate(Int.SIZE_BYTES).putInt(slot.toInt()).array()
    return encrypt(reportId + slotBytes + value, publicKey, (LABEL + roundId).toByteArray() + sha256(roundBytes))
}

/**
 * Return a sealed report in an outer layer, 48 bytes longer, which only the shuffler removes. Each call returns other bytes.
 *
 * @param outerKey The shuffler's key of the round, 32 bytes, which its signature covers.
 * @throws InvalidSpec The key has the wrong length or is not valid.
 */
internal fun wrap(sealed: ByteArray, roundId: String, outerKey: ByteArray): ByteArray = encrypt(sealed, outerKey, (OUTER_LABEL + roundId).toByteArray())

private fun encrypt(plaintext: ByteArray, publicKey: ByteArray, info: ByteArray): ByteArray {
    check(publicKey.size == KEY_BYTES) { "an HPKE key has $KEY_BYTES bytes" }
    return try {
        val context = SUITE.setupBaseS(SUITE.deserializePublicKey(publicKey), info)
        context.encapsulation + context.seal(ByteArray(0), plaintext)
    } catch (_: RuntimeException) { // a point of small order
        throw InvalidSpec("the HPKE public key of the round is not valid")
    }
}

/** Return whether the owner of the Ed25519 key announced the round and its outer key. Throw InvalidSpec if the key has the wrong length. */
internal fun verifyRound(roundId: String, roundBytes: ByteArray, outerKey: ByteArray, signature: ByteArray, publicKey: ByteArray): Boolean {
    check(publicKey.size == KEY_BYTES) { "the public key of the shuffler must have $KEY_BYTES bytes" }
    val key = try {
        Ed25519PublicKeyParameters(publicKey)
    } catch (_: IllegalArgumentException) { // no point of the curve, or one of small order
        return false
    }
    val announced = (ROUND_LABEL + roundId).toByteArray() + sha256(roundBytes) + outerKey
    val verifier = Ed25519Signer()
    verifier.init(false, key)
    verifier.update(announced, 0, announced.size)
    return outerKey.size == KEY_BYTES && signature.size == SIGNATURE_BYTES && verifier.verifySignature(signature)
}

private fun sha256(bytes: ByteArray): ByteArray = MessageDigest.getInstance("SHA-256").digest(bytes)
