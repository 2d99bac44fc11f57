-- Messages of each topic and nsqd by hour of publishing, and whether any is there twice.
SELECT
    topic,
    nsqd,
    day,
    hour,
    count(*) AS messages,
    count(*) - count(DISTINCT id) AS twice,
    sum(octet_length(body)) AS bytes
FROM {{ source('nsq', 'messages') }}
GROUP BY topic, nsqd, day, hour
